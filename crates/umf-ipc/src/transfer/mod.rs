//! How a file descriptor gets from the producer to the importer. Written once, for all providers.
//!
//! | mode | how | needs | not for |
//! |---|---|---|---|
//! | `pidfd` | `pidfd_open(2)` + `pidfd_getfd(2)` (Linux 5.6) | ptrace attach rights; refused between siblings under yama 1 | other pid namespaces |
//! | `procfs` | opening `/proc/<pid>/fd/<n>` (`proc_pid_fd(5)`) | ptrace read rights: the same user, at every yama scope | dma-buf; other pid namespaces |
//! | `socket` | `SCM_RIGHTS` (`unix(7)`) over an abstract socket named by the nonce | a shared network namespace, the same user; a thread in the producer | producers that did not start it |
//!
//! `auto` tries them in this order. An explicit choice is obeyed or refused, never replaced in silence.

mod channel;
mod diagnosis;
mod mode;
pub(crate) mod socket;

pub(crate) use channel::{Channel, Fetched, Wanted};
pub(crate) use diagnosis::yama_scope;
pub use mode::{Exchange, Mode};
