//! Ranks in threads: messages between any two, and the ends of ranks.

use std::time::Duration;

use umf_link::{Communicator, Engine, Error, LinkBuilder, LinkSettings, TagMatch};

use crate::messages::{SECOND, content, forced, importer, memory};

/// Runs all ranks of a job, each in a thread. Each drops its communicator after all have run.
pub(super) fn ranks<T: Send>(
    size: usize,
    settings: &LinkSettings,
    run: impl Fn(&mut Communicator) -> T + Sync,
) -> Vec<T> {
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let job = format!("test-{}-{number}", std::process::id());
    let all_done = std::sync::Barrier::new(size);
    std::thread::scope(|scope| {
        let (job, run, all_done) = (&job, &run, &all_done);
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                scope.spawn(move || {
                    let builder = LinkBuilder::new().settings(settings.clone()).importer(importer());
                    let mut comm = builder.join(job, rank, size).unwrap();
                    comm.set_timeout(Some(Duration::from_secs(20)));
                    assert_eq!((comm.rank(), comm.size()), (rank, size));
                    let done = run(&mut comm);
                    all_done.wait();
                    done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn recv_any_receives_from_all_ranks() {
    ranks(4, &LinkSettings::default(), |comm| {
        let me = comm.rank();
        let others = (0..4).filter(|rank| *rank != me);
        let message = |from: usize, to: usize| content(10 + 30_000 * (from % 2), (from * 10 + to) as u64);
        // All begin with the same one, so that many call on each other at the same time.
        std::thread::scope(|_| {
            for to in others.clone().filter(|to| message(me, *to).len() < 4096) {
                comm.send(to, 5, &message(me, to)).unwrap();
            }
        });
        let mut seen = Vec::new();
        let mut into = vec![0; 40_000];
        let count = others.clone().filter(|from| message(*from, me).len() < 4096).count();
        for _ in 0..count {
            let received = comm.recv_any(5, &mut into).unwrap();
            assert_eq!(into[..received.length], message(received.from, me));
            seen.push(received.from);
        }
        seen.sort_unstable();
        let expected: Vec<_> = others.clone().filter(|from| message(*from, me).len() < 4096).collect();
        assert_eq!(seen, expected);
        // Long ones go when they are received: those of odd ranks, one after the other.
        for from in [1, 3] {
            for to in (0..4).filter(|to| *to != from) {
                if me == from {
                    comm.send(to, 6, &message(me, to)).unwrap();
                } else if me == to {
                    let received = comm.recv_any(TagMatch::tag(6), &mut into).unwrap();
                    assert!(received.from == from && into[..received.length] == message(from, me));
                }
            }
        }
        comm.barrier().unwrap();
        assert!(comm.linked().count() <= 3);
        comm.set_timeout(Some(Duration::from_millis(5)));
        assert!(matches!(comm.recv_any(9, &mut into), Err(Error::TimedOut { .. })));
    });
}

#[test]
fn recv_any_is_fair() {
    let sent = std::sync::Barrier::new(3);
    ranks(3, &LinkSettings::default(), |comm| {
        // All are linked.
        comm.barrier().unwrap();
        if comm.rank() > 0 {
            for number in 0..50_u8 {
                comm.send(0, 1, &[number]).unwrap();
            }
            sent.wait();
            comm.barrier().unwrap();
            return;
        }
        // All of it is in the lanes.
        sent.wait();
        let mut from = Vec::new();
        let mut next = [0_u8; 3];
        for _ in 0..100 {
            let mut byte = [0];
            let rank = comm.recv_any(TagMatch::ANY, &mut byte).unwrap().from;
            assert_eq!(byte[0], next[rank], "in order");
            next[rank] += 1;
            from.push(rank);
        }
        assert!(from.windows(2).all(|pair| pair[0] != pair[1]), "{from:?}");
        comm.barrier().unwrap();
    });
}

#[test]
fn posted_receives_from_any_and_one_rank_match_in_order() {
    ranks(3, &LinkSettings::default(), |comm| {
        let long = content(100_000, 3);
        if comm.rank() > 0 {
            comm.recv(0, 0, &mut []).unwrap();
            comm.send(0, 1, &[comm.rank() as u8]).unwrap();
            let sending = comm.start_send(0, 2, &long).unwrap();
            comm.wait_send(sending).unwrap();
            comm.barrier().unwrap();
            return;
        }
        let (mut any, mut two, mut into) = ([0], [0], vec![0; 100_000]);
        let first = comm.start_recv(Some(2), 1, &mut two).unwrap();
        let second = comm.start_recv(None, 1, &mut any).unwrap();
        let long_one = comm.start_recv(Some(1), 2, &mut into).unwrap();
        let mut cancelled = [0];
        drop(comm.start_recv(None, 2, &mut cancelled).unwrap());
        for rank in [1, 2] {
            comm.send(rank, 0, &[]).unwrap();
        }
        let mut all = [first, second, long_one];
        comm.finish(&mut [], &mut all).unwrap();
        let from = all.each_ref().map(|request| request.received().unwrap().from);
        assert_eq!(from, [2, 1, 1]);
        drop(all);
        assert!((any, two) == ([1], [2]) && into == long);
        let request = comm.start_recv(None, 2, &mut into).unwrap();
        assert_eq!(comm.wait_recv(request).unwrap().from, 2);
        comm.barrier().unwrap();
    });
}

#[test]
fn probe_finds_message_of_any_rank() {
    ranks(3, &LinkSettings::default(), |comm| {
        if comm.rank() > 0 {
            let bytes = vec![1_u8; comm.rank()];
            comm.send(0, comm.rank() as u64, &bytes[..]).unwrap();
            comm.barrier().unwrap();
            return;
        }
        comm.barrier().unwrap();
        let probed = comm.probe(None, 2).unwrap().unwrap();
        assert_eq!((probed.from, probed.tag, probed.length), (2, 2, 2));
        let probed = comm.probe(None, TagMatch::ANY).unwrap().unwrap();
        let mut bytes = [0; 2];
        let received = comm.recv_any(TagMatch::ANY, &mut bytes).unwrap();
        assert_eq!((received.from, received.tag, received.length), (probed.from, probed.tag, probed.length));
        assert_eq!(comm.probe(None, probed.from as u64).unwrap(), None, "it was received");
    });
}

#[test]
fn invalid_jobs_are_refused() {
    let name = format!("wrong-{}", std::process::id());
    for (rank, size) in [(2, 2), (0, 0), (0, 5000)] {
        assert!(
            matches!(Communicator::join(&name, rank, size), Err(Error::BadRank { .. })),
            "{rank} of {size}"
        );
    }
    assert!(matches!(Communicator::join("", 0, 1), Err(Error::BadName { .. })));
    let mut first = Communicator::join(&name, 0, 2).unwrap();
    let taken = Communicator::join(&name, 0, 2).unwrap_err();
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(taken, Error::RankTaken { rank: 0, pid, .. } if pid == own), "{taken}");
    first.set_timeout(Some(Duration::from_millis(50)));
    for rank in [0, 2] {
        assert!(matches!(first.send(rank, 0, &[1]), Err(Error::BadRank { .. })));
    }
    let absent = first.send(1, 0, &[1]).unwrap_err();
    assert!(matches!(absent, Error::RankAbsent { rank: 1, .. }), "{absent}");
    assert!(matches!(first.barrier(), Err(Error::RankAbsent { rank: 1, .. })));
    assert!(
        matches!(first.barrier(), Err(Error::RankAbsent { .. })),
        "there are no collectives after an error"
    );
    first.set_timeout(SECOND);
    let refused = Communicator::join(&name, 1, 3).unwrap_err();
    assert!(matches!(refused, Error::SizeMismatch { other: 2, own: 3 }), "{refused}");
    // The rank is free, and messages continue to work.
    let mut other = Communicator::join(&name, 1, 2).unwrap();
    other.set_timeout(SECOND);
    other.send(0, 7, &[3]).unwrap();
    let mut byte = [0];
    assert_eq!(first.recv_any(7, &mut byte).unwrap().from, 1);
    let ended = other.barrier().unwrap_err();
    assert!(matches!(ended, Error::CollectivesEnded { rank: 0 }), "{ended}");
    drop(other);
    assert!(matches!(first.recv_any(7, &mut byte), Err(Error::Closed { .. })), "the end is reported once");
    let mut third = Communicator::join(&name, 1, 2).unwrap();
    third.set_timeout(SECOND);
    first.forget(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| third.send(0, 8, &[4]).unwrap());
        assert_eq!(first.recv(1, 8, &mut byte).unwrap().length, 1);
    });
}

/// A rank leaves before another rank is linked with it. Ranks that wait for it get `Closed`, and a
/// process that replaces it is linked.
#[test]
fn rank_that_left_unlinked_is_closed_and_replaceable() {
    let name = format!("unmet-{}", std::process::id());
    let join = |rank| {
        let mut comm = Communicator::join(&name, rank, 3).unwrap();
        comm.set_timeout(SECOND);
        comm
    };
    // One rank joined before rank 1, and one after it.
    let mut first = join(0);
    let left = join(1);
    let mut last = join(2);
    drop(left);
    let own = i32::try_from(std::process::id()).unwrap();
    let mut byte = [0];
    for comm in [&mut first, &mut last] {
        let closed = Error::Closed { pid: own };
        assert_eq!(comm.send(1, 0, &[1]).unwrap_err(), closed);
        assert_eq!(comm.recv(1, 0, &mut byte).unwrap_err(), closed);
        assert_eq!(comm.recv_any(0, &mut byte).unwrap_err(), closed);
        comm.set_timeout(Some(Duration::from_millis(50)));
        assert!(
            matches!(comm.recv_any(0, &mut byte), Err(Error::TimedOut { .. })),
            "the end is reported once"
        );
        comm.set_timeout(SECOND);
    }
    // After `forget` a call waits for the next process of the rank.
    first.forget(1).unwrap();
    first.set_timeout(Some(Duration::from_millis(50)));
    assert!(matches!(first.send(1, 0, &[1]), Err(Error::RankAbsent { rank: 1, milliseconds: 50, .. })));
    first.set_timeout(SECOND);
    let mut next = join(1);
    next.send(0, 7, &[2]).unwrap();
    next.send(2, 7, &[3]).unwrap();
    for (comm, value) in [(&mut first, 2), (&mut last, 3)] {
        assert_eq!(comm.recv_any(7, &mut byte).unwrap().from, 1);
        assert_eq!(byte[0], value);
    }
}

/// Messages that a rank sent before it left are received first, also if its link is not yet
/// accepted.
#[test]
fn messages_before_closing_are_received_first() {
    for round in 0..20 {
        let name = format!("late-{round}-{}", std::process::id());
        let mut receiver = Communicator::join(&name, 0, 2).unwrap();
        receiver.set_timeout(SECOND);
        let mut sender = Communicator::join(&name, 1, 2).unwrap();
        sender.set_timeout(SECOND);
        sender.send(0, 1, &[round]).unwrap();
        drop(sender);
        // Long enough for a check of the ranks that are not linked.
        std::thread::sleep(Duration::from_millis(u64::from(round) * 3));
        let mut byte = [0];
        assert_eq!(receiver.recv_any(1, &mut byte).unwrap().from, 1);
        assert_eq!(byte[0], round);
        assert!(matches!(receiver.recv_any(1, &mut byte), Err(Error::Closed { .. })));
    }
}

fn announcing(engine: Option<Engine>) -> LinkSettings {
    let mut settings = engine.map_or_else(LinkSettings::default, forced);
    settings.max_unexpected = 0;
    settings
}

/// Runs `run` on ranks that request their peers to announce only, because each has a message that
/// it receives last.
pub(super) fn announced(size: usize, engine: Option<Engine>, run: impl Fn(&mut Communicator) + Sync) {
    ranks(size, &announcing(engine), |comm| {
        let others: Vec<usize> = (0..size).filter(|rank| *rank != comm.rank()).collect();
        let start = |to: &usize| comm.start_send(*to, 99, b"later").unwrap();
        let mut sends: Vec<_> = others.iter().map(start).collect();
        for from in &others {
            while comm.probe(Some(*from), 99).unwrap().is_none() {}
        }
        run(comm);
        let mut into = vec![[0; 5]; others.len()];
        let both = others.iter().zip(&mut into);
        let mut receives: Vec<_> =
            both.map(|(from, into)| comm.start_recv(Some(*from), 99, into).unwrap()).collect();
        comm.finish(&mut sends, &mut receives).unwrap();
    });
}

/// Requests and sends in a cycle, while peers announce only.
#[test]
fn cyclic_sends_do_not_deadlock() {
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask,
        AskBack,
        Send(u64),
        Receive(u64),
    }
    use Step::{Ask, AskBack, Receive, Send};
    let scenarios: [(usize, Vec<Step>); 5] = [
        (3, [Ask, Ask, AskBack, AskBack].into()),
        (3, [Send(0), Send(0), Send(0), Ask, Receive(0), Receive(0), Receive(0)].into()),
        (3, [[Send(0); 4].as_slice(), &[Send(1), Receive(1)], &[Receive(0); 4]].concat()),
        (3, [[Send(0); 4].as_slice(), &[Ask, Send(1), Receive(1)], &[Receive(0); 4]].concat()),
        (2, [[Ask; 4].as_slice(), &[Send(0); 2], &[Receive(0); 2]].concat()),
    ];
    for (size, steps) in scenarios {
        for (engine, length) in
            [(None, 10), (None, 50_000), (Some(Engine::Bounce), 10), (Some(Engine::Bounce), 50_000)]
        {
            announced(size, engine, |comm| {
                let (after, before) = ((comm.rank() + 1) % size, (comm.rank() + size - 1) % size);
                let target = Box::leak(Box::new(memory(100_000)));
                // SAFETY: the memory is never freed.
                let range =
                    unsafe { comm.link(after).unwrap().register(&*target, umf_link::RemoteAccess::GetPut) }
                        .unwrap();
                let own = range.key().to_bytes();
                let mut keys = [[0; umf_link::KEY_SIZE]; 2];
                for (to, from, key) in [(after, before, 0), (before, after, 1)] {
                    let mut sends = [comm.start_send(to, 50, &own).unwrap()];
                    let mut receives = [comm.start_recv(Some(from), 50, &mut keys[key]).unwrap()];
                    comm.finish(&mut sends, &mut receives).unwrap();
                }
                let [of_before, of_after] = keys.map(|key| umf_link::RemoteKey::from_bytes(&key).unwrap());
                let bytes = content(length, 5);
                let mut sends = Vec::new();
                for step in &steps {
                    match step {
                        Ask => drop(comm.link(after).unwrap().put(&of_after, 0, &bytes).unwrap()),
                        AskBack => drop(comm.link(before).unwrap().put(&of_before, 0, &bytes).unwrap()),
                        Send(tag) => sends.push(comm.start_send(after, *tag, &bytes).unwrap()),
                        Receive(tag) => {
                            let mut into = vec![0; length];
                            if engine.is_none() {
                                comm.recv(before, *tag, &mut into).unwrap();
                            } else {
                                let mut receive = comm.start_recv(Some(before), *tag, &mut into).unwrap();
                                while comm.test_recv(&mut receive).unwrap().is_none() {
                                    for send in &mut sends {
                                        comm.test_send(send).unwrap();
                                    }
                                }
                            }
                            assert!(into == bytes);
                        }
                    }
                }
                comm.finish(&mut sends, &mut []).unwrap();
                comm.barrier().unwrap();
            });
        }
    }
}

/// The end of each process that is a rank is reported, whether it was linked or not.
#[test]
fn ends_of_replaced_ranks_are_reported() {
    let job = format!("replace-{}", std::process::id());
    let join = |rank| {
        let mut comm = Communicator::join(&job, rank, 3).unwrap();
        comm.set_timeout(SECOND);
        comm
    };
    let (mut first, _third) = (join(0), join(2));
    let mut byte = [0];
    drop(join(1));
    let end = first.recv_any(1, &mut byte).unwrap_err();
    assert!(matches!(end, Error::Closed { .. }), "{end}");
    for round in 0..3 {
        let mut second = join(1);
        second.send(0, 1, &[round]).unwrap();
        assert_eq!(first.recv_any(1, &mut byte).unwrap().from, 1);
        drop(second);
        first.set_timeout(Some(Duration::from_secs(2)));
        let end = first.recv_any(1, &mut byte).unwrap_err();
        assert!(matches!(end, Error::Closed { .. }), "{round} {end}");
        let none = first.recv_any(1, &mut byte).unwrap_err();
        assert!(matches!(none, Error::TimedOut { .. }), "{round} {none}");
        first.forget(1).unwrap();
    }
}

#[test]
fn finish_of_receive_from_any_fails_when_all_ranks_are_gone() {
    let job = format!("finish-{}", std::process::id());
    let mut comms: Vec<_> = (0..3).map(|rank| Communicator::join(&job, rank, 3).unwrap()).collect();
    let [mut first, mut second, third] = [0; 3].map(|_| comms.remove(0));
    first.set_timeout(SECOND);
    for _ in 0..240 {
        second.send(0, 1, &[7]).unwrap();
    }
    second.send(0, 2, &[8]).unwrap();
    drop((second, third));
    let (mut one, mut other) = ([0], [0]);
    let mut receives = [(2, &mut one), (3, &mut other)]
        .map(|(tag, into): (u64, &mut [u8; 1])| first.start_recv(None, tag, into).unwrap());
    let end = first.finish(&mut [], &mut receives).unwrap_err();
    assert!(matches!(end, Error::Closed { .. }), "{end}");
    assert!(receives[0].received().is_some() && receives[1].received().is_none());
    drop(receives);
    assert_eq!(one, [8]);
}
