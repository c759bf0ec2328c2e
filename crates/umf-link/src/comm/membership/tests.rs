//! Tests of the membership table: publishing, dead and stalled publishers, forks, hostile words.

use super::*;
use crate::sys;
use std::sync::Barrier;
use sys::CloseOnFork;

/// Whether no socket has the name that the address begins with.
fn is_gone(_: Option<&Directory>, address: &[u8; 64]) -> bool {
    let length = address.iter().position(|&byte| byte == 0).unwrap_or(address.len());
    sys::is_free(&address[..length]).unwrap_or(false)
}

/// Listens at a name that ends so, and returns its address. Children of other tests do not.
fn listen(name: &str) -> (CloseOnFork, [u8; 64]) {
    let name = format!("umf-link-test-{}-{name}", std::process::id());
    let made = CloseOnFork::make(|| {
        let socket = sys::new_socket()?;
        sys::listen(&socket, name.as_bytes())?;
        Ok(socket)
    });
    let socket = made.unwrap();
    let mut address = [0; 64];
    address[..name.len()].copy_from_slice(name.as_bytes());
    (socket, address)
}

fn job(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn join(job: &str, rank: usize, size: usize) -> Membership {
    Membership::join(job, rank, size, is_gone, &LinkSettings::default()).unwrap()
}

const LONG: Duration = Duration::from_secs(60);

/// Waits until the changes are not `seen`.
fn wait(membership: &Membership, seen: u32) {
    let end = Instant::now() + LONG;
    while membership.changes() == seen && Instant::now() < end {
        std::thread::sleep(RETRY_DELAY);
    }
}

#[test]
fn published_rank_is_found_and_its_leaving_is_seen() {
    let job = job("found");
    let (first, second) = (join(&job, 0, 2), join(&job, 1, 2));
    assert_eq!((first.member(0), first.member(1), first.member(2)), (None, None, None));
    let (_socket, address) = listen("found");
    let seen = first.changes();
    let member = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            wait(&first, seen);
            first.member(1)
        });
        second.publish(&address, 7).unwrap();
        waiter.join().unwrap().unwrap()
    });
    assert_eq!(member.address, address);
    assert!(!member.has_left);
    let seen = first.changes();
    drop(second);
    assert_ne!(first.changes(), seen);
    assert_eq!(first.member(1), Some(Member { has_left: true, ..member }));
    // Also when another process is that rank by now.
    let (_other, address) = listen("found-other");
    let second = join(&job, 1, 2);
    second.publish(&address, 7).unwrap();
    let now = first.member(1).unwrap();
    assert!(now.address == address && now.incarnation != member.incarnation && !now.has_left);
}

#[test]
fn second_publisher_of_living_rank_is_refused() {
    let job = job("taken");
    let (first, second) = (join(&job, 0, 1), join(&job, 0, 1));
    let (socket, address) = listen("taken");
    let (_other_socket, other) = listen("taken-other");
    first.publish(&address, 7).unwrap();
    let member = first.member(0).unwrap();
    let pid = std::process::id().cast_signed();
    let taken = Error::RankTaken { job: job.clone(), rank: 0, pid };
    assert_eq!(second.publish(&other, 7).unwrap_err(), taken);
    assert_eq!(second.member(0), Some(member));
    // The process that was the rank ends.
    drop(socket);
    second.publish(&other, 7).unwrap();
    let now = first.member(0).unwrap();
    assert!(now.address == other && now.incarnation != member.incarnation);
    // Its end is not taken for that of its successor, nor for a leave.
    drop(first);
    assert_eq!(second.member(0), Some(now));
}

#[test]
fn one_of_concurrent_publishers_wins() {
    let job = job("race");
    let all: Vec<_> = (0..4).map(|number| listen(&format!("race-{number}"))).collect();
    let meet = Barrier::new(all.len());
    let witness = join(&job, 1, 2);
    for _ in 0..100 {
        let wins = std::thread::scope(|scope| {
            let publish = |address: [u8; 64]| {
                let (meet, job, witness) = (&meet, &job, &witness);
                move || {
                    let membership = join(job, 0, 2);
                    meet.wait();
                    let result = membership.publish(&address, 7);
                    meet.wait();
                    match &result {
                        Ok(()) => assert_eq!(witness.member(0).unwrap().address, address),
                        Err(error) => assert!(matches!(error, Error::RankTaken { .. }), "{error}"),
                    }
                    meet.wait();
                    usize::from(result.is_ok())
                }
            };
            let threads: Vec<_> = all.iter().map(|(_, address)| scope.spawn(publish(*address))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!(wins, 1);
        assert!(witness.member(0).unwrap().has_left);
    }
}

#[test]
fn stalled_publisher_loses_its_claim() {
    let job = job("stalled");
    let (first, second) = (join(&job, 0, 1), join(&job, 0, 1));
    let (_socket, address) = listen("stalled");
    let slot = first.slot(0).unwrap();
    let stalled = slot.claim().next();
    assert!(slot.replace(slot.claim(), stalled));
    assert_eq!(second.member(0), None);
    second.publish(&address, 7).unwrap();
    let member = second.member(0).unwrap();
    assert_eq!(member.address, address);
    // It goes on.
    assert!(!slot.write(stalled, 1, &[1; 64], 1));
    assert!(!slot.replace(stalled, stalled.with(SlotState::Here)));
    assert_eq!(second.member(0), Some(member));
}

#[test]
fn word_of_stalled_publisher_is_replaced() {
    let membership = join(&job("words"), 0, 1);
    let slot = membership.slot(0).unwrap();
    let stalled = slot.claim().next();
    let claim = stalled.next();
    assert!(slot.replace(slot.claim(), claim));
    assert!(slot.write(claim, 7, &[7; 64], u64::MAX - 7));
    // What the stalled one had loaded before the claim does not stand there any more.
    let (value, old) = (stalled.incarnation() << 32 | 1, 0);
    assert!(slot.words[3].compare_exchange(old, value, Ordering::Relaxed, Ordering::Relaxed).is_err());
    assert_eq!(slot.read(claim.incarnation()), Some((7, [7; 64], u64::MAX - 7)));
    // Readers reject the word that it replaced, until the word is written again.
    slot.words[3].store(value, Ordering::Relaxed);
    assert_eq!(slot.read(claim.incarnation()), None);
    assert!(slot.write(claim, 7, &[7; 64], u64::MAX - 7));
    assert_eq!(slot.read(claim.incarnation()), Some((7, [7; 64], u64::MAX - 7)));
}

#[test]
fn invalid_sizes_and_names_are_refused() {
    let job = job("checked");
    let _meeting = join(&job, 0, 3);
    let fails = |job: &str, rank, size| {
        Membership::join(job, rank, size, is_gone, &LinkSettings::default()).unwrap_err()
    };
    assert_eq!(fails(&job, 0, 4), Error::SizeMismatch { other: 3, own: 4 });
    assert_eq!(fails(&job, 0, MAX_RANKS), Error::SizeMismatch { other: 3, own: MAX_RANKS });
    for (rank, size) in [(3, 3), (0, 0), (0, MAX_RANKS + 1), (usize::MAX, 3)] {
        assert_eq!(fails(&job, rank, size), Error::BadRank { rank, size });
    }
    for name in ["", "a b", "\u{e4}", &"j".repeat(33)] {
        assert!(matches!(fails(name, 0, 1), Error::BadName { .. }), "{name}");
    }
    let small = format!("{job}-small");
    let domain = Domain::join(&format!("umf-link/{small}"), DomainSettings::default()).unwrap();
    let _object = domain.find_or_create(1, KIND).unwrap();
    let text = fails(&small, 0, 1).to_string();
    assert!(text.contains(&small) && text.contains("too small"), "{text}");
    let last = join(&format!("{:j<32}", std::process::id()), MAX_RANKS - 1, MAX_RANKS);
    let (_socket, address) = listen("checked");
    last.publish(&address, 7).unwrap();
    assert_eq!(last.member(MAX_RANKS - 1).map(|member| member.address), Some(address));
}

/// Forks, and runs `child` there.
fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child uses what the fork handlers of the allocator and of umf prepared.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(pid > 0);
    pid
}

/// Sends a signal, which may be 0, and waits for the end.
fn end(pid: i32, signal: i32) {
    let mut status = 0;
    // SAFETY: a child of this process that was not reaped; `status` is valid for the write.
    unsafe { (libc::kill(pid, signal), libc::waitpid(pid, &raw mut status, 0)) };
    assert_eq!(status, signal);
}

#[test]
fn killed_process_is_replaced_in_any_state() {
    let job = job("killed");
    let membership = join(&job, 0, 2);
    let mut last = 0;
    for is_done in [true, false, true] {
        let seen = membership.changes();
        let pid = fork(|| {
            let other = join(&job, 1, 2);
            let (_socket, address) = listen("killed");
            if is_done {
                other.publish(&address, 7).unwrap();
            } else {
                let slot = other.slot(1).unwrap();
                assert!(slot.replace(slot.claim(), slot.claim().next()));
                other.announce();
            }
            std::thread::sleep(LONG);
        });
        wait(&membership, seen);
        let before = membership.member(1);
        assert_eq!(before.is_some(), is_done);
        end(pid, libc::SIGKILL);
        let (_socket, address) = listen("killed-other");
        let other = join(&job, 1, 2);
        other.publish(&address, 7).unwrap();
        let member = membership.member(1).unwrap();
        assert_eq!(member.address, address);
        assert!(member.incarnation > last);
        last = member.incarnation;
        if let Some(before) = before {
            assert!(before.incarnation < last && !before.has_left);
        }
    }
}

#[test]
fn forked_child_publishes_and_leaves_nothing() {
    let job = job("forked");
    let (mut first, second) = (Some(join(&job, 0, 2)), join(&job, 1, 2));
    let (_socket, address) = listen("forked");
    first.as_ref().unwrap().publish(&address, 7).unwrap();
    let pid = fork(|| {
        assert_eq!(second.publish(&address, 7), Err(Error::Forked));
        drop(first.take());
    });
    end(pid, 0);
    assert_eq!(second.member(0).map(|member| member.address), Some(address));
}

/// A process of the same user writes anything anywhere, meanwhile and between calls.
#[test]
fn overwritten_words_do_no_harm() {
    let job = job("scribbling");
    let membership = join(&job, 1, 3);
    let (_socket, address) = listen("scribbling");
    let view = membership.object.view::<u64>().unwrap();
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    };
    let slots = HEADER_SIZE / 8..(HEADER_SIZE + 3 * SLOT_SIZE) / 8;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, slots) = (&is_over, slots.clone());
        let mut value = next();
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for word in slots.clone() {
                    value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    view.set(word, value).unwrap();
                }
            }
        });
        for _ in 0..20 {
            for rank in 0..4 {
                let _ = membership.member(rank);
            }
            let _ = membership.publish(&address, 7);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for round in 0..60 {
        for word in [0].into_iter().chain(slots.clone()) {
            view.set(word, if round % 3 == 0 { u64::MAX << (next() % 64) } else { next() }).unwrap();
        }
        for rank in 0..4 {
            let _ = membership.member(rank);
        }
        if let Ok(()) = membership.publish(&address, 7) {
            assert_eq!(membership.member(1).map(|member| member.address), Some(address));
        }
        let _ = Membership::join(&job, 0, 3, is_gone, &LinkSettings::default()).map(drop);
    }
}
