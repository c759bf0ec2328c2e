//! Exporters that end while the process forks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::Duration;

use umf_tests::actor;

/// The socket's thread has its fds until it has ended, and forks have to know them until then: a child that kept them would
/// keep the name of a socket that nobody answers on.
#[test]
fn a_child_forked_while_an_exporter_ends_has_none_of_its_sockets() {
    let mut actor = actor!();
    let command = "fork-while-exporters-end 1500";
    let answer = actor.ask_for(command, Duration::from_secs(60)).unwrap();
    assert_eq!(answer, "with_socket=0 children=1500");
    actor.finish();
}
