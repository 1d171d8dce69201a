// runtime/detail/loop_registry.hpp — the lists of a loop's scopes and mailboxes, and the observer
// of its messages.
//
// The lists are intrusive. Internal.
// Thread rule: the loop's thread (or the owner's while the loop does not run).
#pragma once

#include "runtime/detail/root_task.hpp"

namespace tandem {

class MessageTap;
class Scope;

namespace detail {

class Mailbox;

struct LoopRegistry {
  Mailbox* first_mailbox = nullptr;  // those that are open, newest first
  MessageTap* message_tap = nullptr;
  Scope* first_scope = nullptr;            // newest first
  RootTask::promise_type* main = nullptr;  // of the run() under way
};

}  // namespace detail
}  // namespace tandem
