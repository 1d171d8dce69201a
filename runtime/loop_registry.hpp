// runtime/loop_registry.hpp — what a loop knows of those that live on it: its mailboxes, and who taps their mail.
//
// Intrusive lists, of the loop's thread (or of the owner's while the loop does not run). Internal.
#pragma once

namespace tandem {

class MailTap;

namespace detail {

class Mailbox;

struct LoopRegistry {
  Mailbox* first_mailbox = nullptr;  // those that are open, newest first
  MailTap* mail_tap = nullptr;
};

}  // namespace detail
}  // namespace tandem
