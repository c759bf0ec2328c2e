//! Concurrent first opens of one producer. The test is in this program because it needs a
//! failpoint.

use std::time::Duration;

use umf_sync::failpoint::{Action, arm, reached};
use umf_tests::{ProcessSnapshot, spawn};

use super::serialize;

/// Returns the numbers of fds and mappings of lease tables in this process.
fn lease_tables() -> [usize; 2] {
    let snapshot = ProcessSnapshot::of_pid(std::process::id());
    [snapshot.fds, snapshot.mappings].map(|of| of.get("/memfd:umf-leases (deleted)").copied().unwrap_or(0))
}

/// Thread A finds no lease table of the producer, and thread B opens the table before A does. Both
/// must then use one table, and none may stay when both have closed their mappings.
#[test]
fn racing_first_opens_share_one_lease_table() {
    let _serial = serialize();
    let mut producer = spawn!().start();
    producer.ok("pool p isolated");
    for number in 1..=50 {
        let block = format!("p.b{number}");
        producer.ok(&format!("alloc p 10000 -> {block}"));
        let handle = producer.handle(&format!("handle {block}"));
        let before = lease_tables();
        let [missing, made] = ["lease.table_missing", "lease.table_checked"].map(reached);
        assert!(arm("lease.table_missing", 1, Action::Sleep(100)));
        let have_met = std::thread::scope(|scope| {
            let slow = scope.spawn(|| umf::open(&handle).unwrap());
            while reached("lease.table_missing") == missing {
                std::thread::sleep(Duration::from_millis(1));
            }
            let quick = umf::open(&handle).unwrap();
            let was_first = reached("lease.table_checked") == made + 1;
            let slow = slow.join().unwrap();
            assert!(slow.is_current() && quick.is_current());
            was_first && reached("lease.table_checked") == made + 2
        });
        umf::importer().unwrap().evict_idle();
        assert_eq!(lease_tables(), before, "fds and mappings of lease tables remain though nothing is open");
        producer.ok(&format!("free p {block}"));
        assert_eq!(producer.ok("drain 5000"), "0", "bytes are held though nothing is open");
        if have_met {
            return producer.finish();
        }
    }
    panic!("thread B never opened the table before the sleeping thread A");
}
