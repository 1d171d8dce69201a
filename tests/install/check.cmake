# One check of the installed tree; CHECK says which. Run by ctest (tests/install/CMakeLists.txt).
#   contents: what is installed, and nothing of the machine it was built on in it
#   consumer: configures, builds and runs the project in consumer/, with no LibTorch to be found
#   fetched:  builds and runs that project with the tree as a part of it (FetchContent), and nothing but the runtime's own needs
#   senders:  builds and runs the project's senders.cpp with the headers of stdexec in STDEXEC
#   pkg_config: builds and runs its main.cpp by the flags of pkg-config alone
#   trainer:  builds examples/custom_trainer.cpp with LibTorch in that project, and trains with it
#   trains:   bin/tandem of a copy of the tree that lies elsewhere trains the demo's model
#   template: examples/template, copied out of the tree and built by its one command, trains
#   refuses:  the consumer asks for COMPONENTS with COMPILER and FLAGS; find_package must say TEXT
function(run_or_die what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what} failed:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Nothing that python3 knows is found, and the consumer's own folder has no .venv.
set(configure ${CMAKE_COMMAND} -E env PYTHONNOUSERSITE=1 PATH=/usr/bin:/bin
  ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK} -G ${GENERATOR} --fresh
  -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}" -DCMAKE_PREFIX_PATH=${PREFIX} "-DCOMPONENTS=${COMPONENTS}"
  "-DCUDAToolkit_ROOT=${CUDA}" -DCMAKE_MAKE_PROGRAM=${MAKE})

if(CHECK STREQUAL "contents")
  foreach(wanted include/tandem/runtime.hpp include/tandem/runtime/task.hpp include/tandem/runtime/util/error.hpp include/tandem/actors/slot_pool.hpp
      ${LIBDIR}/libtandem_runtime.a ${LIBDIR}/cmake/tandem/tandemConfig.cmake
      ${LIBDIR}/cmake/tandem/tandemConfigVersion.cmake ${LIBDIR}/cmake/tandem/tandem-runtime.cmake)
    if(NOT EXISTS ${PREFIX}/${wanted})
      message(FATAL_ERROR "${wanted} is not installed")
    endif()
  endforeach()
  file(GLOB_RECURSE files RELATIVE ${PREFIX} ${PREFIX}/*)
  foreach(file ${files})
    if(NOT file MATCHES "^include/tandem/.*\\.hpp$|^${LIBDIR}/libtandem_[a-z_]+\\.a$|^${LIBDIR}/cmake/tandem/(.*\\.cmake|coroutine_check\\.cpp)$|^${LIBDIR}/pkgconfig/tandem-runtime\\.pc$|^bin/|^share/tandem/(demo|tools)/")
      message(FATAL_ERROR "${file} does not belong into an installation")
    endif()
  endforeach()
  # Programs name LibTorch's folder, which may lie in the tree's .venv; everything else must be free to move.
  execute_process(COMMAND grep -rlF -e ${SOURCE} -e ${BINARY} -e ${PREFIX} ${PREFIX}/include ${PREFIX}/${LIBDIR}
    OUTPUT_VARIABLE found)
  if(found)
    message(FATAL_ERROR "paths of the build are in:\n${found}")
  endif()
  execute_process(COMMAND grep -rliE "torch|c10|aten/" ${PREFIX}/include/tandem/runtime
    ${PREFIX}/${LIBDIR}/cmake/tandem/tandem-runtime.cmake OUTPUT_VARIABLE found)
  if(found)
    message(FATAL_ERROR "LibTorch is mentioned by the runtime:\n${found}")
  endif()

elseif(CHECK STREQUAL "consumer")
  run_or_die("configuring" ${configure})
  execute_process(COMMAND grep -iE "libtorch|libc10|torch/|ATen" ${WORK}/build.ninja OUTPUT_VARIABLE found)
  if(found)
    message(FATAL_ERROR "LibTorch is on the consumer's command lines:\n${found}")
  endif()
  run_or_die("building" ${CMAKE_COMMAND} --build ${WORK} --parallel 2)
  run_or_die("running" ${CMAKE_COMMAND} -E chdir ${WORK} ./consumer)
  if(NOT output MATCHES "consumer: ok")
    message(FATAL_ERROR "the consumer said: ${output}")
  endif()
  run_or_die("running" ${WORK}/uses_actors)
  run_or_die("running" ${WORK}/uses_core)
  run_or_die("running" ${WORK}/uses_kit)
  run_or_die("ldd" ldd ${WORK}/consumer)
  if(output MATCHES "libtorch|libc10|libcuda") # ldd prints addresses too, and one in twelve runs holds a c10
    message(FATAL_ERROR "the consumer loads LibTorch or CUDA:\n${output}")
  endif()

elseif(CHECK STREQUAL "fetched")
  run_or_die("configuring" ${configure} -DFETCH=${SOURCE} -DTANDEM_UNITY=ON)
  execute_process(COMMAND grep -iE "torch|gtest|benchmark|CLI11|sodium|simdjson|xxhash|/actors/|/engine/" ${WORK}/build.ninja OUTPUT_VARIABLE found)
  if(found)
    message(FATAL_ERROR "more than the runtime is built or linked:\n${found}")
  endif()
  run_or_die("building" ${CMAKE_COMMAND} --build ${WORK} --parallel 2 --target consumer)
  run_or_die("running" ${CMAKE_COMMAND} -E chdir ${WORK} ./consumer)
  if(NOT output MATCHES "consumer: ok")
    message(FATAL_ERROR "the consumer said: ${output}")
  endif()

elseif(CHECK STREQUAL "senders")
  run_or_die("configuring" ${configure} -DSTDEXEC=${STDEXEC})
  run_or_die("building" ${CMAKE_COMMAND} --build ${WORK} --target uses_senders)
  run_or_die("running" ${WORK}/uses_senders)
  if(NOT output MATCHES "senders: ok")
    message(FATAL_ERROR "the program said: ${output}")
  endif()

elseif(CHECK STREQUAL "pkg_config")
  file(MAKE_DIRECTORY ${WORK})
  run_or_die("building" sh -c "export PKG_CONFIG_PATH='${PREFIX}/${LIBDIR}/pkgconfig'
    ${COMPILER} -O1 ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cpp -o '${WORK}/by_hand' $(pkg-config --cflags --libs tandem-runtime) ${FLAGS}")
  run_or_die("running" ${CMAKE_COMMAND} -E chdir ${WORK} ./by_hand)
  if(NOT output MATCHES "consumer: ok")
    message(FATAL_ERROR "the program said: ${output}")
  endif()

elseif(CHECK STREQUAL "trainer")
  run_or_die("configuring" ${configure} -DTANDEM_TORCH_DIR=${TORCH}
    -DCUSTOM_TRAINER=${SOURCE}/examples/custom_trainer.cpp)
  run_or_die("building" ${CMAKE_COMMAND} --build ${WORK} --target custom_trainer)
  run_or_die("training" ${CMAKE_COMMAND} -E chdir ${WORK} ./custom_trainer --save_every 500 --overwrite_output_dir)
  if(NOT EXISTS ${WORK}/runs/spirals/model/model.safetensors OR NOT EXISTS ${WORK}/runs/spirals/report.html)
    message(FATAL_ERROR "the trainer left no model or no report: ${output}")
  endif()
  string(REGEX MATCH "([0-9]+) of 1000 points told apart" found "${output}")
  if(NOT found OR CMAKE_MATCH_1 LESS 950)
    message(FATAL_ERROR "the trainer did not learn: ${output}")
  endif()

elseif(CHECK STREQUAL "trains")
  file(REMOVE_RECURSE ${WORK})
  file(COPY ${PREFIX}/bin ${PREFIX}/share DESTINATION ${WORK}/moved)
  run_or_die("training" ${CMAKE_COMMAND} -E chdir ${WORK} ${WORK}/moved/bin/tandem train --steps 2 --output_dir out)
  if(NOT EXISTS ${WORK}/out/summary.json OR NOT output MATCHES "Summary of 2 steps")
    message(FATAL_ERROR "the installed tree did not train: ${output}")
  endif()
  run_or_die("help" ${WORK}/moved/bin/tandem train --help)

elseif(CHECK STREQUAL "template")
  file(REMOVE_RECURSE ${WORK})
  file(COPY ${SOURCE}/examples/template/ DESTINATION ${WORK})
  run_or_die("configuring and building" ${CMAKE_COMMAND} -E env TANDEM_PREFIX=${PREFIX} TANDEM_TORCH_DIR=${TORCH}
    ${CMAKE_COMMAND} -E chdir ${WORK} ${CMAKE_COMMAND} --workflow --preset release)
  run_or_die("training" ${WORK}/build/release/my_trainer)
  string(REGEX MATCH "the model says ([0-9.]+)" found "${output}")
  if(NOT found OR CMAKE_MATCH_1 LESS 0.95 OR CMAKE_MATCH_1 GREATER 1.05)
    message(FATAL_ERROR "the template did not learn: ${output}")
  endif()

elseif(CHECK STREQUAL "refuses")
  execute_process(COMMAND ${configure} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REPLACE "~" ";" TEXT "${TEXT}") # in a test's command a semicolon would end the argument
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake wraps its messages
  string(FIND "${output}" "${TEXT}" at)
  if(code EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "find_package should have failed with \"${TEXT}\", and said:\n${output}")
  endif()
endif()
