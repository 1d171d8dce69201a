// runtime/runtime.hpp — all that a program of the runtime usually needs, in one include:
// `#include <tandem/runtime.hpp>`.
//
// Left out are the test kit (runtime/testing/), the simulator (sim/), devices (device/), and
// sockets with their headers of Asio (io/asio_await.hpp, io/net.hpp).
#pragma once

#include "runtime/actor.hpp"
#include "runtime/channel.hpp"
#include "runtime/clock.hpp"
#include "runtime/completion.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/first_of.hpp"
#include "runtime/generator.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/io/signals.hpp"
#include "runtime/report.hpp"
#include "runtime/scope.hpp"
#include "runtime/select.hpp"
#include "runtime/semaphore.hpp"
#include "runtime/sleep.hpp"
#include "runtime/spawned.hpp"
#include "runtime/supervision/children.hpp"
#include "runtime/supervision/monitor.hpp"
#include "runtime/supervision/shutdown.hpp"
#include "runtime/task.hpp"
#include "runtime/trace.hpp"
#include "runtime/trace_file.hpp"
#include "runtime/util/error.hpp"
#include "runtime/when_all.hpp"
#include "runtime/with_deadline.hpp"
