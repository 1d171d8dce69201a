"""The campaigns of ./tandem trust: what is tried, the bar, the command that prints the figure, and how it is read.

A command ends with 0 where the bar is met, or the reader knows it (held_to); with SKIPPED, and a line, where what it
needs is not here. Commands run by bash in the root of the tree, with BIN the folder of the release build's programs
and PYTHON the interpreter of the tree.
"""

import dataclasses
import json
import re
from typing import Callable


SKIPPED = 77  # ctest's habit


class NoFigure(Exception):
    """The output holds no figure."""


class FallsShort(Exception):
    """A figure that is short of its bar, where the command does not know the bar."""


def held_to(bar, figure):
    """The figure, where it is within its bar."""
    if not bar:
        raise FallsShort(figure)
    return figure


@dataclasses.dataclass(frozen=True)
class Campaign:
    """`absent` says why there is no figure where the command cannot run here at all."""

    name: str
    what: str
    bar: str
    command: str
    quick: str | None
    figure: Callable[[str], str]
    absent: str = ""


def line(pattern):
    """Every part of the output that matches, joined: a group where the pattern has one."""

    def read(output):
        found = re.findall(pattern, output, re.MULTILINE)
        if not found:
            raise NoFigure(f"nothing like {pattern}")
        return "; ".join(found)

    return read


def passed(output):
    """GoogleTest's count, of one program or of several one after the other."""
    found = re.findall(r"\[  PASSED  \] (\d+) tests?\.", output)
    if not found:
        raise NoFigure("no tests passed")
    skipped = re.findall(r"\[  SKIPPED \] (\d+) tests?,", output)
    return f"{sum(map(int, found))} tests passed" + (f", {sum(map(int, skipped))} skipped" if skipped else "")


def ctest(output):
    found = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", output)
    if not found:
        raise NoFigure("no summary of ctest")
    return f"{found.group(2)} of {found.group(3)} tests failed"


def benchmarks(output):
    """Google Benchmark's JSON, without what a program prints before it."""
    begin = output.find("{\n")
    if begin < 0:
        raise NoFigure("no JSON")
    return json.JSONDecoder().raw_decode(output[begin:])[0]["benchmarks"]


def rollback(output):
    cases = benchmarks(output)
    elements = sum(case["elements"] for case in cases)
    differ = sum(case["mismatches"] for case in cases)
    return held_to(differ == 0, f"{differ:.0f} of {elements:.3g} elements differ")


def saving(output):
    cases = benchmarks(output)
    figure = "; ".join(f"{case['name'].split('/')[1]}: step time x {case['ratio']:.3f}, bytes "
                       f"{'equal' if case['equal'] == 1 else 'NOT equal'}, {case['exposed_ms']:.0f} ms exposed"
                       for case in cases)
    return held_to(all((case["ratio"] <= 1.05 or "_short_steps" in case["name"]) and case["equal"] == 1
                       for case in cases), figure)


def planted_bugs(output):
    found = re.findall(r"found by seed (\d+)$", output, re.MULTILINE)
    if not found:
        raise NoFigure("no planted bug was found")
    return f"{len(found)} found, the last within {max(map(int, found)) + 1} seeds"


def parity(output):
    verdicts = re.findall(r" (PASS|FAIL)$", output, re.MULTILINE)
    if not verdicts:
        raise NoFigure("no verdict of parity")
    return f"{verdicts.count('PASS')} PASS, {verdicts.count('FAIL')} FAIL"


def summary(output):
    """The JSON object that a drill ends with."""
    try:
        return json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise NoFigure("no summary of the drill") from error


def drill(text):
    """The text with the fields of a drill's summary; a list is said by its length."""

    def read(output):
        fields = summary(output)
        return text.format_map({name: len(value) if isinstance(value, list) else value for name, value in fields.items()})

    return read


def notice(output):
    found = summary(output)
    kill, stop = found["kill_noticed_s"], found["stop_noticed_by_peer_s"]
    figure = (f"kill: p50 {kill['p50']} s, max {kill['max']} s; stop, by a peer: p50 {stop['p50']} s, "
              f"max {stop['max']} s, heartbeat {found['heartbeat_s']} s; {found['trials']} trials, "
              f"{found['load']} busy loops")
    return held_to(kill["max"] <= 2 and stop["max"] <= 3 * found["heartbeat_s"], figure)


def soak(output):
    found = summary(output)
    return (f"{sum(found['faults'].values())} faults in {found['minutes']:g} minutes, weights "
            f"{'equal' if found['weights_equal'] else 'NOT equal'}, resident memory +{max(found['rss_drift']):.2%}")


def agreement(output):
    found = summary(output)
    return (f"{found['files']:,} files: {found['accepted_that_python_refuses'] + found['other']} verdicts differ, "
            f"{found['refused_as_documented']} refused as documented; ids of {found['equal_ids']:,} of "
            f"{found['texts']:,} texts equal")


def gtest(program, pattern, before=""):
    return f"{before}$BIN/{program} --gtest_filter='{pattern}'"


def same(name, what, bar, command, figure):
    """A campaign that is quick as it is."""
    return Campaign(name, what, bar, command, command, figure)


TRAINER_KILLS = "$BIN/test_examples --gtest_filter='TrainerResume.KilledAtAnyPoint*'"

CAMPAIGNS = [
    Campaign("kill_trainer", "kill -9 of the trainer at random points; it goes on from its checkpoints",
             "200: none lost, the same digits at the end",
             f"TANDEM_TRAINER_KILLS=200 {TRAINER_KILLS}", TRAINER_KILLS,
             line(r"^\d+ kills: \d+ committed steps lost")),
    Campaign("kill_storage", "kill -9 of the storage layer", "5,000: 0 lost, 0 torn taken for whole",
             "$BIN/storage_crash --kills 5000 --seed 7", "$BIN/storage_crash --kills 200 --seed 7",
             line(r"^\d+ kills, .*$")),
    same("power_cut", "states of the disk after a power cut during a save", "all recover",
         gtest("test_actors", "PowerCut.*"), line(r"^power cuts: (\d+ states of the disk at \d+ moments)")),
    same("resume", "save at every step of 50 steps, resume at each", "all equal to the straight run, bit for bit",
         gtest("test_engine", "Each/Resume.*"), line(r"^\w+: \d+ of \d+ steps")),
    same("resume_ranks", "1 -> 2 -> 4 -> 1 ranks, stages 0 to 3 crossed", "16 of 16 equal",
         gtest("test_engine", "ResumeOnRanks.*"), line(r"^legs equal: (\d+ of \d+)")),
    same("bit_flips", "one flipped bit in a checkpoint", "all found, the tensor named",
         gtest("test_actors", "CheckpointFolder.EveryFlippedBit*"), line(r"^bit flips found and named: (\d+ of \d+)")),
    Campaign("rollback", "elements of weights and moments that differ after an update was taken back and redone",
             "0 of 10^9",
             "$BIN/bench_rollback --elements=16e6 --benchmark_filter='^apart' --benchmark_format=json",
             "$BIN/bench_rollback --elements=1e6 --benchmark_filter='^apart' --benchmark_format=json", rollback),
    Campaign("speculation", "a run that speculates, with rollbacks forced, beside one that does not",
             "the same losses and weights",
             "$PYTHON tests/drills/speculation.py $BIN --steps 1000",
             "$PYTHON tests/drills/speculation.py $BIN --steps 60",
             line(r"^\d+ steps, .*$")),
    same("adam_bits", "update kernels over lengths, chunks, threads and layouts", "the same bits",
         gtest("test_actors", "*UpdateKernels*:*Rounding*:*SplitMaster*"), passed),
    same("parity", "losses, gradients and weights beside Transformers and torch", "within the limits of their rounding",
         "for folder in tests/data/references/small_*; do $BIN/tandem parity $folder || exit 1; done", parity),
    Campaign("numbers", "schedulers beside DeepSpeed's, and runs drawn by seed (family, shape, masks, ranks, stage, optimizer, means, "
             "resumed) beside torch and Transformers in float64",
             "all schedulers equal; 200 runs within 8 deviations of float32's rounding, resumed ones bit for bit",
             "$PYTHON tests/drills/numbers.py --bin $BIN", "$PYTHON tests/drills/numbers.py --bin $BIN --runs 12",
             drill("{schedules} schedules, {schedules_apart} differ; {runs} runs, {resumed} of them resumed, {without_labels} with records "
                   "without labels: {beyond} beyond rounding, the farthest at {farthest} of its bound")),
    same("ranks_digits", "losses over ranks, stages, overlap, launchers", "the same digits",
         gtest("test_examples", "Ranks.*Digit*:Finetune.Schedules*:Cifar.*Digit*"), passed),
    Campaign("seeds", "seeds of the simulator: training, saving, messages, files with faults",
             "10,000 keep every promise",
             "$BIN/test_sim --seeds 10000", "$BIN/test_sim --seeds 2000", line(r"^\d+ seeds keep every promise")),
    Campaign("many_hosts", "seeds of the simulator: collectives of 512 ranks on 64 hosts, with slow ranks, cut links, deaths",
             "200 keep every promise",
             "$BIN/test_sim --many-hosts --seeds 200", "$BIN/test_sim --many-hosts --seeds 6",
             line(r"^\d+ seeds keep every promise")),
    Campaign("each_fault", "eight small trainings, again and again: each visit, kernel, copy, chunk, collective, frame and file call "
             "fails once, the rank is stopped during each, and it dies and is stopped before each of its turns",
             "8 keep every promise: the rank is named, nothing is left, and the next start has the reference's weights",
             "$BIN/test_sim --each-fault --seeds 8", "$BIN/test_sim --each-fault --seeds 2", line(r"^\d+ seeds keep every promise")),
    same("planted_bugs", "bugs planted in runtime, actors and the core of the engine", "all found by the simulator",
         gtest("test_sim", "Each/PlantedBugs.*"), planted_bugs),
    Campaign("asan", "tests under AddressSanitizer and UBSan", "0 reports",
             "./tandem build asan && ctest --test-dir build/asan -j2", None, ctest),
    Campaign("tsan", "tests under ThreadSanitizer", "0 reports",
             "./tandem build tsan && ctest --test-dir build/tsan -j2", None, ctest),
    same("model_checker", "executions of the inbox, credits and wake-ups under a weak memory model", "0 failures",
         "$BIN/test_model", passed),
    Campaign("hang", "ranks that are killed, stopped, suspended, slow or hang, in each phase of a run",
             "120 of 120 end in time with their code, the rank named by the launcher",
             "$PYTHON tests/drills/hang.py --bin $BIN", "$PYTHON tests/drills/hang.py --quick --bin $BIN",
             drill("{passed} of {cells} cells ended as they must, the rank named in {named}")),
    Campaign("hosts", "training over hosts: stages 0 to 3, overlap, types, launchers, experts, rows shared by ranks, a slow wire that loses frames",
             "losses, norms and weights of one host, to the last byte",
             "$PYTHON tests/drills/hosts.py --bin $BIN", "$PYTHON tests/drills/hosts.py --quick --bin $BIN",
             drill("{equal} of {cells} runs over hosts equal to one host")),
    Campaign("hang_hosts", "ranks over hosts that are killed, stopped, slow or hang, links that stall, hosts that die, in each phase",
             "60 of 60 end within the deadline and 5 s with their code, rank and host named, nothing left",
             "$PYTHON tests/drills/hang_hosts.py --bin $BIN", "$PYTHON tests/drills/hang_hosts.py --quick --bin $BIN",
             drill("{passed} of {cells} cells ended as they must")),
    Campaign("restart", "a host or a rank that is lost at a random step; the run goes on with what is left",
             "10 of 10: losses and weights of the undisturbed run",
             "$PYTHON tests/drills/restart.py --trials 10 --namespaces --bin $BIN",
             "$PYTHON tests/drills/restart.py --trials 1 --bin $BIN", drill("{equal} of {trials} runs equal")),
    Campaign("notice", "time until a killed and a stopped rank are noticed, beside 10 busy loops",
             "<= 2 s; <= 3 heartbeats", "$PYTHON tests/drills/hang.py --notice --bin $BIN", None, notice),
    Campaign("soak", "training through a fault every 20 s, resumed each time, beside an undisturbed run",
             "30 minutes: the same weights, resident memory < 1 % more",
             "$PYTHON tests/drills/soak.py --minutes 30 --bin $BIN",
             "$PYTHON tests/drills/soak.py --minutes 1 --every_s 10 --bin $BIN", soak),
    same("io_backends", "tests of files on io_uring and on threads", "the same, on both",
         gtest("test_runtime", "Both/*"), passed),
    same("memory_plan", "memory predicted beside memory used", "within 10 %",
         gtest("test_examples", "Memory.IsPredictedWithinATenth"), passed),
    Campaign("save_cost", "step time beside a save, over without",
             "<= 1.05 on steps of 1024 tokens and more, bytes equal to a save that is waited for",
             "$BIN/bench_checkpoint --benchmark_format=json", None, saving),
    Campaign("disks", "hosts with disks of their own: killed, resumed, slices lost, gathered, on one host",
             "losses, norms and weights of one host, to the last byte; what is missing is named with its host",
             "$PYTHON tests/drills/disks.py --bin $BIN", "$PYTHON tests/drills/disks.py --quick --bin $BIN",
             drill("{equal} of {cells} cells equal")),
    Campaign("shared_blocks", "checkpoints of state on NVMe that share its blocks: XFS, Btrfs, and XFS that shares nothing",
             "the files and, resumed in memory and on NVMe, the digits of a run in memory; nine tenths shared where the disk can",
             "$PYTHON tests/drills/shared_blocks.py --bin $BIN", "$PYTHON tests/drills/shared_blocks.py --only xfs --bin $BIN",
             drill("{file_systems} file systems, {shared_percent} % of a checkpoint shared, {resumed} resumed runs equal; {wrong} "
                   "faults")),
    Campaign("bad_values", "a weight or a moment in the memory of a run that becomes a NaN or an infinity: types, stages, overlap, by seed",
             "100 runs: the newest finite checkpoint stays, and --resume auto takes it",
             "$PYTHON tests/drills/bad_values.py --bin $BIN", "$PYTHON tests/drills/bad_values.py --runs 2 --bin $BIN",
             drill("{runs} runs: {lost} lost their finite checkpoints")),
    same("stalled_disk", "a disk with state that stops to answer in the middle of a run, its writes and its reads",
         "the unit whose bytes wait is named, the run goes on, losses and weights are those of one that nothing disturbed",
         "$PYTHON tests/drills/stalled_disk.py --bin $BIN",
         drill("{trials} stalls: the unit named in {named}, {wrong} faults")),
    Campaign("meeting", "how two hosts meet: second networks, strangers, taken ports, firewalls, other versions, models and data",
             "it starts, or ends with 2 or 4 and one line with cause and host; nothing is left",
             "$PYTHON tests/drills/meeting.py --bin $BIN", "$PYTHON tests/drills/meeting.py --quick --bin $BIN",
             drill("{passed} of {cells} cells as they must be, {strangers} strangers at a meeting")),
    same("strangers", "another user, and processes that do not know the run's secret", "get in nowhere, stop no start",
         gtest("test_core", "Strangers*:Rendezvous*:RunSecret*"), passed),
    same("strangers_memory", "another user, and hostile peers, at the ranks' shared memory", "read and write nothing",
         gtest("test_actors", "ShmStrangers*"), passed),
    Campaign("io_faults", "every n-th I/O call fails or is the last, in training, saving and resuming",
             "no exit 0 with a loss, nothing older harmed", "TMPDIR=/dev/shm $BIN/io_faults",
             "TMPDIR=/dev/shm $BIN/io_faults --quick",
             drill("{injected} calls failed, {killed} of them a kill: {silent} losses not said, {harmed} older models or checkpoints "
                   "harmed, {left} temporary files left, {unclear} unclear lines")),
    Campaign("links", "links, pipes, folders and files of others at every path of a run's folder, training, resuming and again",
             "nothing outside changes, nothing of others goes; every case ends in time with its code and one line",
             "$PYTHON tests/drills/links.py --bin $BIN", "$PYTHON tests/drills/links.py --quick --bin $BIN",
             drill("{cases} cases, {faults} faults")),
    same("locks", "two runs over one folder of checkpoints, folders reached by links, locks that are links, pipes or of others",
         "one run at a time; the other one names the holder; nothing is followed",
         "$BIN/test_actors --gtest_filter='Folders.*Lock*' && $BIN/test_examples "
         "--gtest_filter='TrainerResume.OneFolder*:LostReports.AFolderIsOneRuns*'", passed),
    same("privacy", "state on NVMe, a run's lock, its socket and its rings in memory, as another user sees them",
         "no name, or mode 0600",
         "$BIN/test_actors --gtest_filter='StateFile*:Folders.ALockIs*:ShmStrangers*' && $BIN/test_runtime "
         "--gtest_filter='StatusServerTest.TheFile*:Flight*'", passed),
    same("deaf_launcher", "ranks that write without end, and readers that do not read, beside signals and failures",
         "signals and failures are answered within the grace; lines that are left out are counted",
         gtest("test_launch", "Hearing.*:Logs.*"), passed),
    same("room", "disks, quotas and limits of files that have no room for the model and the last checkpoint",
         "said before the first step; reports stop before the model's room",
         gtest("test_examples", "LostReports.*Room*:LostReports.LimitsOfFiles*"), passed),
    same("current_folder", "modules in the current folder with the names of Python's own", "none is run",
         "$PYTHON tests/tools/current_folder_test.py", line(r"^Ran \d+ tests")),
    same("touched", "every call with a path of a run that trains, saves, is resumed, removes and begins again",
         "none outside of its folders; within them all go from descriptors, and follow no link",
         "$PYTHON tests/drills/touched.py --bin $BIN", drill("{runs} runs, {calls:,} calls, {faults} faults")),
    Campaign("fuzz", "inputs of every format that is read, with ASan and UBSan", "10^8 executions, 0 crashes",
             "./tandem build fuzz && $PYTHON tests/fuzz/campaign.py build/fuzz/bin --runs 100000000 "
             "--record build/fuzz/campaign.json",
             "$PYTHON tests/fuzz/campaign.py $BIN --runs 300000",
             drill("{executions:,} executions of {targets} targets, {failed} crashed or took too long")),
    Campaign("prepare_fuzz", "damaged data, templates and tokenizer files of every kind that ./tandem prepare reads",
             "20,000 inputs: each succeeds, or ends with one line and code 1 or 2",
             "$PYTHON tests/fuzz/prepare.py --runs 20000", "$PYTHON tests/fuzz/prepare.py --runs 300",
             drill("{runs:,} inputs, {failed} ended otherwise")),
    Campaign("records", "records, tokenizer files, config.json and adapters with one member added, removed, renamed, nulled or retyped, "
             "beside Transformers and PEFT",
             "100,000: each is the reference's value, a note, or a refusal that names the member",
             "$PYTHON tests/drills/records.py --runs 100000 --bin $BIN", "$PYTHON tests/drills/records.py --runs 300 --bin $BIN",
             drill("{runs:,} inputs, {silent_differences} silent differences")),
    Campaign("fault_inputs", "files that once broke something, and damaged copies of each, through the real programs",
             "100 copies of each: every one ends in time, with its code and one line",
             "$PYTHON tests/drills/inputs.py --bin $BIN", "$PYTHON tests/drills/inputs.py --mutations 2 --bin $BIN",
             drill("{inputs} inputs, {mutations:,} damaged copies: {crashes} crashes, {hangs} hangs, {wrong_codes} wrong codes, "
                   "{unclear_lines} unclear lines")),
    Campaign("deepspeed", "real DeepSpeed's checkpoints: stages 0 to 3, fp32 and bf16, tied, frozen, groups, there and back",
             "the next three steps are DeepSpeed's own",
             "$PYTHON tests/drills/deepspeed_checkpoints.py --bin $BIN", None,
             drill("{folders} folders of 1 to 3 ranks: Tandem goes on from {gone_on}, DeepSpeed from {back_in_deepspeed} that came "
                   "back through Tandem; {apart} apart")),
    Campaign("agreement", "safetensors files and texts beside Python's safetensors and tokenizers",
             "none accepted that Python refuses, all ids equal",
             "$PYTHON tests/fuzz/compare_with_python.py $BIN --files 100000 --texts 100000",
             "$PYTHON tests/fuzz/compare_with_python.py $BIN --files 2000 --texts 2000", agreement),
    Campaign("machines", "the tests on other machines: rates, cores, SIMD, io_uring, locked memory, descriptors, shared memory, home, "
             "temporary folder, umask, user, locales, time zone", "the passes of this machine; what cannot be is skipped in words",
             "$PYTHON tests/drills/machines.py --build build/release",
             "$PYTHON tests/drills/machines.py --quick --build build/release",
             drill("{restrictions} restrictions, {runs_of_tests:,} tests run under them, {failed} failed")),
    Campaign("readme", "commands of README.md and of the start and how-to pages, and what they print", "all end and print as the page says",
             "$PYTHON tests/docs/readme_test.py $BIN --all", "$PYTHON tests/docs/readme_test.py $BIN",
             line(r"^\d+ commands of README.md and docs/ run, .*$")),
    Campaign("recipes", "the changes of docs/extend.md, each applied to a copy of the tree, built, and run", "all print what the page says",
             "$PYTHON tests/docs/recipes_test.py --build", "$PYTHON tests/docs/recipes_test.py", line(r"^\d+ of \d+ changes .*$")),
    Campaign("debian", "a fresh clone in a chroot of Debian 13: setup, the demo, the quick tests", "all end with 0",
             "tests/install/debian.sh trixie ${TMPDIR:-/tmp}/trixie", None, line(r"^debian .*$")),
    Campaign("torch", "engine, models and trainer built against the newest LibTorch", "parity of all families; fp32 losses of the demo equal",
             "tests/install/torch.sh 2.15.0 ${TMPDIR:-/tmp}/torch", None, line(r"^torch .*$")),
    Campaign("gpu", "hang drill on NCCL, compute-sanitizer, overlap by an outside tool", "as on the CPU; 0 reports",
             "./tandem test --gpu (on a host with GPUs)", None, passed, absent="needs a GPU; bench/results has the runs on some"),
]
