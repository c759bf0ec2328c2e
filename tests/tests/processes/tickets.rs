//! Handles in transit: messages whose block is freed before they are read.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf_tests::{Actor, Outcome, Patience, ProcessSnapshot, machine, spawn};

/// Starts a producer with a pool `p`.
fn producer(mode: &str) -> Actor {
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
    producer.ok("pool p shared");
    producer
}

fn importer(mode: &str) -> Actor {
    spawn!().env("UMF_IPC_EXCHANGE", mode).start()
}

/// Allocates and fills a block, sends it and frees it. Returns the handle of the message, and the
/// block's plain handle.
fn send(producer: &mut Actor, seed: u64, readers: u16) -> (umf::Handle, umf::Handle) {
    producer.ok("alloc p 10240 -> p.block");
    producer.ok(&format!("fill p.block {seed}"));
    let plain = producer.handle("handle p.block");
    let message = producer.handle(&format!("send p.block {readers}"));
    assert!(message.has_ticket() && !plain.has_ticket());
    producer.ok("free p p.block");
    (message, plain)
}

fn held(actor: &mut Actor) -> u64 {
    actor.ok("drain 0");
    actor.number("held", "bytes")
}

/// Waits until the producer holds nothing.
fn assert_released(producer: &mut Actor) {
    let mut patience = Patience::new(Duration::from_secs(10));
    while held(producer) != 0 {
        assert!(patience.sleep(), "the block is held: {}", producer.ok("held"));
    }
}

#[test]
fn message_opens_after_its_block_was_freed() {
    for mode in ["pidfd", "procfs", "socket"] {
        let (mut producer, mut importer) = (producer(mode), importer(mode));
        for seed in 1..=3 {
            let (message, plain) = send(&mut producer, seed, 1);
            assert_eq!(producer.ok("in-transit"), "1");
            assert!(held(&mut producer) >= 10240, "{mode}");
            importer.fails(&format!("open {plain} -> stale"), "Stale");
            assert_eq!(importer.ok(&format!("open {message} -> got")), "10240");
            importer.check("got", seed);
            assert_eq!(importer.ok("is_current got"), "false");
            assert_eq!(producer.ok("in-transit"), "0");
            // The memory is not reused while it is open.
            producer.ok("alloc p 10240 -> p.other");
            producer.ok("fill p.other 77");
            importer.check("got", seed);
            let text = importer.fails(&format!("open {message} -> again"), "TicketClaimed");
            assert!(text.contains("send it again, for more readers"), "{text}");
            assert!(held(&mut producer) >= 10240);
            importer.ok("close got");
            assert_released(&mut producer);
            producer.ok("free p p.other");
        }
    }
}

#[test]
fn message_of_a_live_block_opens_any_number_of_times() {
    let (mut producer, mut importer) = (producer("auto"), importer("auto"));
    producer.ok("alloc p 5000 -> p.block");
    producer.ok("fill p.block 5");
    let message = producer.handle("send p.block 1");
    for name in ["first", "second", "third"] {
        importer.ok(&format!("open {message} -> {name}"));
        importer.check(name, 5);
    }
    producer.ok("free p p.block");
    importer.fails(&format!("open {message} -> late"), "TicketClaimed");
    for name in ["first", "second", "third"] {
        assert!(held(&mut producer) >= 5000);
        importer.ok(&format!("close {name}"));
    }
    assert_released(&mut producer);
}

#[test]
fn each_of_several_readers_opens_a_message() {
    let mut producer = producer("auto");
    let mut readers: Vec<Actor> = (0..3).map(|_| importer("auto")).collect();
    let (message, _) = send(&mut producer, 9, 3);
    for reader in &mut readers {
        reader.ok(&format!("open {message} -> got"));
        reader.check("got", 9);
        reader.ok("close got");
    }
    readers[0].fails(&format!("open {message} -> again"), "TicketClaimed");
    assert_released(&mut producer);
}

#[test]
fn received_message_is_passed_on() {
    let (mut a, mut b, mut c) = (producer("auto"), importer("auto"), importer("auto"));
    for seed in 1..=3 {
        let (message, _) = send(&mut a, seed, 1);
        b.ok(&format!("open {message} -> got"));
        let passed_on = b.handle(&format!("pass-on got {message} 1"));
        assert_ne!(passed_on, message);
        b.ok("close got");
        assert!(held(&mut a) >= 10240, "in transit from the second process");
        c.ok(&format!("open {passed_on} -> got"));
        c.check("got", seed);
        b.ok("drain 0");
        assert_eq!(b.ok("in-transit"), "0");
        c.ok("close got");
        assert_released(&mut a);
    }
    // Another handle than the one that was opened.
    let (first, _) = send(&mut a, 1, 1);
    let (second, _) = send(&mut a, 2, 1);
    b.ok(&format!("open {first} -> got"));
    b.fails(&format!("pass-on got {second} 1"), "OtherHandle");
}

#[test]
fn cancelled_message_is_a_plain_handle() {
    let (mut producer, mut importer) = (producer("auto"), importer("auto"));
    let (message, _) = send(&mut producer, 1, 1);
    assert_eq!(importer.ok(&format!("cancel {message}")), "false");
    assert_eq!(producer.ok(&format!("cancel {message}")), "true");
    assert_eq!(producer.ok(&format!("cancel {message}")), "false");
    importer.fails(&format!("open {message} -> got"), "TicketExpired");
    assert_released(&mut producer);
    // The slot is used again, but not the word of the ticket.
    producer.ok("alloc p 10240 -> p.block");
    producer.handle("handle p.block");
    importer.fails(&format!("open {message} -> got"), "TicketExpired");
    spawn!().start().fails(&format!("open {message} -> got"), "TicketExpired");
}

#[test]
fn send_fails_at_the_limit_of_bytes_until_a_message_is_read() {
    let mut producer = spawn!().env("UMF_IPC_MAX_IN_TRANSIT", "64KiB").start();
    let mut importer = importer("auto");
    producer.ok("pool p shared");
    // Alone, a block that exceeds the limit is sent.
    producer.ok("alloc p 100000 -> p.large");
    let large = producer.handle("send p.large 1");
    producer.ok("alloc p 4000 -> p.block");
    let text = producer.fails("send p.block 1", "TransitFull");
    assert!(text.contains("ipc.max_in_transit"), "{text}");
    // Several messages of one block count it once.
    let again = producer.handle("send p.large 1");
    for message in [large, again] {
        importer.ok(&format!("open {message} -> large"));
        importer.ok("close large");
    }
    let messages: Vec<_> = (0..6).map(|seed| send(&mut producer, seed, 1).0).collect();
    producer.ok("alloc p 10240 -> p.late");
    producer.fails("send p.late 1", "TransitFull");
    importer.ok(&format!("open {} -> got", messages[0]));
    importer.check("got", 0);
    producer.handle("send p.late 1");
}

#[test]
fn oldest_messages_are_given_up_at_the_limit_of_bytes() {
    let mut producer =
        spawn!().env("UMF_IPC_MAX_IN_TRANSIT", "64KiB").env("UMF_IPC_EXPIRE_AFTER_MS", "300").start();
    let mut importer = importer("auto");
    producer.ok("pool p shared");
    let messages: Vec<_> = (0..6).map(|seed| send(&mut producer, seed, 1).0).collect();
    importer.ok(&format!("open {} -> first", messages[0]));
    // Age alone cancels nothing.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(producer.ok("in-transit"), "5");
    importer.ok(&format!("open {} -> second", messages[1]));
    let (young, _) = send(&mut producer, 10, 1);
    let (younger, _) = send(&mut producer, 11, 1);
    assert_eq!(producer.ok("in-transit"), "6");
    // Needs two of the four old ones.
    producer.ok("alloc p 20480 -> p.late");
    let late = producer.handle("send p.late 1");
    assert_eq!(producer.ok("in-transit"), "5");
    // The late message has the word of the second one.
    let text = importer.fails(&format!("open {} -> old", messages[2]), "TicketExpired");
    assert!(text.contains("expire_after_ms"), "{text}");
    importer.fails(&format!("open {} -> old", messages[3]), "TicketClaimed");
    for (seed, message) in (4..).zip(&messages[4..]) {
        importer.ok(&format!("open {message} -> old"));
        importer.check("old", seed);
    }
    for (message, seed) in [(young, 10), (younger, 11)] {
        importer.ok(&format!("open {message} -> young"));
        importer.check("young", seed);
    }
    importer.ok(&format!("open {late} -> late"));
    importer.check("first", 0);
    importer.check("second", 1);
}

#[test]
fn message_outlives_its_pool_and_the_eviction_of_its_export() {
    let (mut producer, mut importer) = (producer("auto"), importer("auto"));
    producer.ok("alloc p 10240 -> p.block");
    producer.ok("fill p.block 3");
    let message = producer.handle("send p.block 1");
    producer.ok("free p p.block");
    producer.ok("evict-exports");
    producer.ok("drop-pool p");
    importer.ok(&format!("open {message} -> got"));
    importer.check("got", 3);
    importer.ok("close got");
    assert_released(&mut producer);
}

#[test]
fn killed_processes_release_what_is_in_transit() {
    let (mut a, mut b, mut c) = (producer("auto"), importer("auto"), importer("auto"));
    // The reader, after it has claimed.
    let (message, _) = send(&mut a, 1, 1);
    c.ok(&format!("open {message} -> got"));
    c.kill();
    assert_released(&mut a);
    // The process that passes on, before the reader has claimed.
    let mut c = importer("auto");
    let (message, _) = send(&mut a, 2, 1);
    b.ok(&format!("open {message} -> got"));
    let passed_on = b.handle(&format!("pass-on got {message} 1"));
    b.kill();
    assert_released(&mut a);
    c.fails(&format!("open {passed_on} -> got"), "TicketClaimed");
    // The producer.
    let (message, _) = send(&mut a, 3, 1);
    a.kill();
    importer("auto").fails(&format!("open {message} -> got"), "ProducerGone");
    // A process that had the region open may still claim it, if it has not noticed the producer's
    // end yet.
    match c.ask(&format!("open {message} -> got")) {
        Ok(_) => c.check("got", 3),
        Err(failure) => assert_eq!(failure.variant, "ProducerGone", "{failure}"),
    }
}

#[test]
fn forked_child_of_the_sender_changes_nothing() {
    let (mut producer, mut importer) = (producer("auto"), importer("auto"));
    let (message, _) = send(&mut producer, 4, 1);
    producer.fork();
    importer.ok(&format!("open {message} -> got"));
    importer.check("got", 4);
    importer.ok("close got");
    assert_released(&mut producer);
}

#[test]
fn messages_leave_nothing_behind() {
    let (mut producer, mut importer) = (producer("auto"), importer("auto"));
    let (message, _) = send(&mut producer, 1, 1);
    importer.ok(&format!("open {message} -> got"));
    importer.ok("close got");
    assert_released(&mut producer);
    let before = [ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)];
    for seed in 2..200 {
        let (message, _) = send(&mut producer, seed, 1);
        importer.ok(&format!("open {message} -> got"));
        importer.check("got", seed);
        importer.ok("close got");
    }
    assert_released(&mut producer);
    for (before, actor) in before.iter().zip([&producer, &importer]) {
        before.assert_restored(actor);
    }
}

/// The generation changes while the opener reads the ledger.
#[test]
fn message_opens_while_another_thread_frees_its_block() {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    const ROUNDS: u64 = 20_000;
    let pool = umf::Pool::shared().unwrap();
    let (block, round) = (Mutex::new(None), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for next in 1..=ROUNDS {
                while round.load(Ordering::Acquire) < next {
                    std::thread::yield_now();
                }
                drop(block.lock().unwrap().take());
            }
        });
        for next in 1..=ROUNDS {
            let sent = pool.allocate(4096).unwrap();
            let message = sent.send_handle().unwrap();
            *block.lock().unwrap() = Some(sent);
            round.store(next, Ordering::Release);
            (0..next % 100).for_each(|_| std::hint::spin_loop());
            let opened = umf::open(&message);
            if let Err(error) = opened {
                // Lets the other thread end.
                round.store(ROUNDS, Ordering::Release);
                panic!("round {next}: {error}");
            }
            while block.lock().unwrap().is_some() {
                std::thread::yield_now();
            }
        }
    });
}

/// The producer has retired the export, and has not found the ticket yet.
#[test]
fn message_opens_while_its_block_is_freed() {
    for failpoint in ["ledger.retired", "lease.scanning", "lease.rows_passed"] {
        let (mut producer, mut importer) = (producer("socket"), importer("socket"));
        producer.ok("alloc p 10240 -> p.block");
        producer.ok("fill p.block 6");
        let message = producer.handle("send p.block 1");
        producer.ok(&format!("arm {failpoint} 1 sleep:3000"));
        producer.send("free p p.block");
        std::thread::sleep(Duration::from_millis(700));
        importer.ok(&format!("open {message} -> got"));
        importer.check("got", 6);
        assert!(matches!(producer.outcome(Duration::from_secs(20)), Outcome::Answer(Ok(_))));
        importer.ok("close got");
        assert_released(&mut producer);
    }
}

#[test]
fn message_opens_without_proc() {
    const TEST: &str = "message_opens_without_proc";
    if !machine::is_root() {
        return machine::skip(TEST, "mounting needs root");
    }
    let mut producer = producer("socket");
    for mode in ["procfs,socket", "auto"] {
        let spawn = spawn!().env("UMF_IPC_EXCHANGE", mode);
        let Some(mut importer) = machine::in_namespaces(TEST, spawn, libc::CLONE_NEWNS) else { return };
        importer.ok("mount tmpfs /proc size=64k");
        for seed in 1..=3 {
            let (message, _) = send(&mut producer, seed, 1);
            importer.ok(&format!("open {message} -> got"));
            importer.check("got", seed);
            let text = importer.ask(&format!("pass-on got {message} 1")).unwrap_err().message;
            assert!(text.contains("mount /proc"), "{text}");
            importer.ok("close got");
            assert_released(&mut producer);
        }
    }
}

/// A child has no lease of what its parent has opened.
#[test]
fn forked_child_passes_on_only_what_is_kept() {
    let (mut producer, mut importer, mut reader) = (producer("auto"), importer("auto"), importer("auto"));
    producer.ok("alloc p 10240 -> p.block");
    producer.ok("fill p.block 8");
    let plain = producer.handle("handle p.block");
    importer.ok(&format!("open {plain} -> got"));
    importer.fork();
    let passed_on = importer.handle(&format!("child pass-on got {plain} 1"));
    importer.ok("close got");
    producer.ok("free p p.block");
    assert!(held(&mut producer) >= 10240, "in transit from the child");
    reader.ok(&format!("open {passed_on} -> got"));
    reader.check("got", 8);
    reader.ok("close got");
    importer.ok("child in-transit");
    assert_released(&mut producer);
    importer.fails(&format!("child pass-on got {plain} 1"), "Stale");
    assert_eq!(importer.ok("child in-transit"), "0");
}

#[test]
fn importer_without_leases_does_not_claim() {
    let mut producer = producer("auto");
    let mut importer = spawn!().env("UMF_IPC_LEASES", "off").start();
    let (message, _) = send(&mut producer, 1, 1);
    importer.fails(&format!("open {message} -> got"), "LeasesOff");
    assert_eq!(producer.ok("in-transit"), "1");
}
