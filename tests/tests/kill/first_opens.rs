//! Threads that are the first to open something of a producer, at the same time. Here, since it takes a step to have them meet.

use std::time::Duration;

use umf_sync::failpoint::{Action, arm, reached};
use umf_tests::{Census, spawn};

use super::turn;

/// What this process has of the lease tables of producers: fds and mappings.
fn lease_tables() -> [usize; 2] {
    let census = Census::of_pid(std::process::id());
    [census.fds, census.mappings].map(|of| of.get("/memfd:umf-leases (deleted)").copied().unwrap_or(0))
}

/// One finds no table of leases, and is overtaken by another one, which makes it: theirs is the same table then, and none is left
/// when both have closed what they opened.
#[test]
fn of_two_tables_of_leases_one_goes() {
    let _turn = turn();
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
        assert_eq!(
            lease_tables(),
            before,
            "fds and mappings of a producer of which nothing is open any more"
        );
        producer.ok(&format!("free p {block}"));
        assert_eq!(producer.ok("drain 5000"), "0", "bytes that are held for nobody");
        if have_met {
            return producer.finish();
        }
    }
    panic!("a thread that sleeps was never overtaken");
}
