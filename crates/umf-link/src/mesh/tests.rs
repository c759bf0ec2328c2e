use core::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Atomic, AtomicOperation, AtomicType, Destination, Source};

fn label(tag: u64) -> Label {
    Label { tag: Some(tag), immediate: None }
}

fn pair() -> (Mesh, Mesh, Process, Process) {
    let builder = LinkBuilder::new();
    let (mut one, mut other) = (Mesh::new(&builder).unwrap(), Mesh::new(&builder).unwrap());
    let (to_other, to_one) = (one.insert(&other.address()).unwrap(), other.insert(&one.address()).unwrap());
    (one, other, to_other, to_one)
}

/// Makes the link with a process, however long its thread has to wait for a processor.
fn link(mesh: &mut Mesh, process: Process) {
    loop {
        match mesh.connect(process) {
            Err(Error::NotAccepted { .. }) => std::thread::yield_now(),
            connected => return connected.unwrap(),
        }
    }
}

/// Two meshes, of which the first is linked with the other.
fn linked_pair() -> (Mesh, Mesh, Process, Process) {
    let (mut one, other, to_other, to_one) = pair();
    link(&mut one, to_other);
    (one, other, to_other, to_one)
}

/// Makes progress with both until one has a completion.
fn complete(mesh: &mut Mesh, other: &mut Mesh) -> Completion {
    let mut rounds = 0_u64;
    loop {
        if let Some(completion) = mesh.next_completion() {
            return completion;
        }
        mesh.progress();
        other.progress();
        rounds += 1;
        assert!(rounds < 100_000_000, "no completion");
        if rounds > 1000 {
            std::thread::yield_now();
        }
    }
}

fn any(from: Option<Process>) -> Wanted {
    Wanted { from, tag: Some(TagMatch::ANY) }
}

fn received(completion: Completion) -> Message {
    match completion.result {
        Ok(Completed::Received { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_of_all_lengths_arrive_in_order_with_immediate_data() {
    let (mut one, mut other, to_other, to_one) = linked_pair();
    for (tag, length) in (1..).zip([0, 1, 8, 232, 233, 500, 1100, 4096, 40_000, 1 << 20]) {
        for immediate in [None, Some(!tag)] {
            let bytes: Vec<u8> = (0..length).map(|at| (at as u64 * 7 + tag) as u8).collect();
            let mut into = vec![0; length];
            for is_expected in [false, true] {
                into.fill(0);
                // SAFETY: both are kept until the completions.
                let (source, target) = unsafe {
                    (
                        Source::from_raw(&[(bytes.as_ptr().cast_mut(), length)]),
                        Destination::from_raw(&[(into.as_mut_ptr(), length)]),
                    )
                };
                let label = Label { tag: Some(tag), immediate };
                let wanted = Wanted { from: Some(to_one), tag: Some(TagMatch::tag(tag)) };
                // SAFETY: as above.
                let is_sent = unsafe {
                    if is_expected {
                        other.receive(wanted, target, None, 2).unwrap();
                        one.send(to_other, label, source, false, 1).unwrap()
                    } else {
                        let is_sent = one.send(to_other, label, source, false, 1).unwrap();
                        other.receive(wanted, target, None, 2).unwrap();
                        is_sent
                    }
                };
                let message = received(complete(&mut other, &mut one));
                assert_eq!(message, Message { from: to_one, tag, length, immediate });
                assert!(into == bytes, "{length}");
                if !is_sent {
                    assert!(matches!(complete(&mut one, &mut other).result, Ok(Completed::Sent)));
                }
            }
        }
    }
}

#[test]
fn process_sends_to_itself() {
    let mut mesh = Mesh::new(&LinkBuilder::new()).unwrap();
    let own = mesh.insert(&mesh.address()).unwrap();
    link(&mut mesh, own);
    let bytes = vec![5_u8; 100_000];
    let mut into = vec![0_u8; 100_000];
    // SAFETY: both are kept until the completions.
    unsafe {
        mesh.receive(any(None), Destination::from_raw(&[(into.as_mut_ptr(), into.len())]), None, 7).unwrap();
        mesh.send(own, label(3), Source::from_raw(&[(bytes.as_ptr().cast_mut(), bytes.len())]), false, 8)
            .unwrap();
    }
    let mut tokens = Vec::new();
    while tokens.len() < 2 {
        mesh.progress();
        tokens.extend(mesh.next_completion().map(|completion| (completion.token, completion.result.is_ok())));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, [(7, true), (8, true)]);
    assert!(into == bytes);
}

#[test]
fn both_processes_send_first_and_each_message_arrives_once() {
    let (mut one, mut other, to_other, to_one) = pair();
    let exchange = |mesh: &mut Mesh, peer: Process| {
        link(mesh, peer);
        for number in 0..1000_u64 {
            mesh.inject(peer, label(number), &number.to_ne_bytes()).unwrap();
        }
        let mut next = 0;
        let mut into = [0_u8; 8];
        while next < 1000 {
            // SAFETY: kept until the completion.
            unsafe {
                let into = Destination::from_raw(&[(into.as_mut_ptr(), 8)]);
                mesh.receive(any(Some(peer)), into, None, next).unwrap();
            }
            let completion = loop {
                mesh.progress();
                if let Some(completion) = mesh.next_completion() {
                    break completion;
                }
            };
            assert_eq!(received(completion).tag, next);
            assert_eq!(u64::from_ne_bytes(into), next);
            next += 1;
        }
        // Until the other one has sent all.
        mesh.inject(peer, label(5000), &[]).unwrap();
        while mesh.peek(&Wanted { from: None, tag: Some(TagMatch::tag(5000)) }, None).is_none() {
            mesh.progress();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&mut one, to_other));
        scope.spawn(|| exchange(&mut other, to_one));
    });
}

#[test]
fn two_links_to_a_process_count_as_one_process() {
    let (mut one, mut other, to_other, to_one) = linked_pair();
    (one.processors, other.processors) = (2, 2);
    let itself = one.insert(&one.address()).unwrap();
    link(&mut other, to_one);
    link(&mut one, itself);
    one.inject(to_other, label(1), &[]).unwrap();
    other.inject(to_one, label(1), &[]).unwrap();
    one.inject(itself, label(2), &[]).unwrap();
    let wanted = |tag| Wanted { from: None, tag: Some(TagMatch::tag(tag)) };
    while one.peek(&wanted(1), None).is_none()
        || one.peek(&wanted(2), None).is_none()
        || other.peek(&wanted(1), None).is_none()
    {
        one.progress();
        other.progress();
    }
    assert!(one.links.len() > 2);
    assert!(!one.inbox.is_oversubscribed && !other.inbox.is_oversubscribed);
}

#[test]
fn truncated_message_is_reported() {
    let (mut one, mut other, to_other, to_one) = linked_pair();
    for length in [100_usize, 100_000] {
        for is_expected in [false, true] {
            let bytes = vec![9_u8; length];
            let mut into = [0_u8; 64];
            // SAFETY: both are kept until the completions.
            unsafe {
                let target = Destination::from_raw(&[(into.as_mut_ptr(), 40)]);
                if is_expected {
                    other.receive(any(None), target, None, 2).unwrap();
                    one.send(
                        to_other,
                        label(3),
                        Source::from_raw(&[(bytes.as_ptr().cast_mut(), length)]),
                        false,
                        1,
                    )
                    .unwrap();
                } else {
                    one.send(
                        to_other,
                        label(3),
                        Source::from_raw(&[(bytes.as_ptr().cast_mut(), length)]),
                        false,
                        1,
                    )
                    .unwrap();
                    other.receive(any(None), target, None, 2).unwrap();
                }
            }
            let completion = complete(&mut other, &mut one);
            assert_eq!(completion.result.unwrap_err(), Error::Truncated { length, capacity: 40 });
            assert_eq!(
                completion.message.unwrap(),
                Message { from: to_one, tag: 3, length, immediate: None }
            );
            // The sender of a long message keeps the data.
            assert_eq!((into[39], into[40]), (if length < 1000 { 9 } else { 0 }, 0));
            if length > 1000 {
                assert!(matches!(complete(&mut one, &mut other).result, Ok(Completed::Sent)));
            }
        }
    }
}

#[test]
fn memory_for_many_messages_is_released_when_too_little_is_left() {
    let (mut one, mut other, to_other, _) = linked_pair();
    let mut into = vec![0_u8; 1000];
    let wanted = Wanted { from: None, tag: None };
    let label = Label { tag: None, immediate: None };
    one.inject(to_other, label, &[1; 300]).unwrap();
    // SAFETY: kept until the completions.
    unsafe {
        let target = Destination::from_raw(&[(into.as_mut_ptr(), into.len())]);
        other.receive(wanted, target, Some(200), 4).unwrap();
    }
    one.inject(to_other, label, &[2; 300]).unwrap();
    one.inject(to_other, label, &[3; 300]).unwrap();
    let mut ends = Vec::new();
    for _ in 0..3 {
        match complete(&mut other, &mut one).result.unwrap() {
            Completed::Received { message, address, is_last } => {
                ends.push((address - into.as_ptr().addr(), message.length, is_last));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends, [(0, 300, false), (300, 300, false), (600, 300, true)]);
    assert_eq!([into[0], into[599], into[899], into[900]], [1, 2, 3, 0]);
}

#[test]
fn claimed_message_is_received_by_its_claim_only() {
    let (mut one, mut other, to_other, _) = linked_pair();
    one.inject(to_other, label(1), b"first").unwrap();
    one.inject(to_other, label(1), b"second").unwrap();
    let wanted = Wanted { from: None, tag: Some(TagMatch::tag(1)) };
    while other.peek(&wanted, Some(77)).is_none() {
        other.progress();
    }
    let mut into = [0_u8; 6];
    // SAFETY: kept until the completions.
    unsafe {
        other.receive(wanted, Destination::from_raw(&[(into.as_mut_ptr(), 6)]), None, 1).unwrap();
        assert_eq!(received(complete(&mut other, &mut one)).length, 6);
        assert_eq!(&into, b"second");
        assert!(other.receive_claimed(77, Destination::from_raw(&[(into.as_mut_ptr(), 6)]), 2));
        assert_eq!(received(complete(&mut other, &mut one)).length, 5);
        assert!(!other.receive_claimed(77, Destination::from_raw(&[(into.as_mut_ptr(), 6)]), 2));
    }
    assert_eq!(&into[..5], b"first");
}

#[test]
fn cancelled_receive_takes_no_message() {
    let (mut one, mut other, to_other, _) = linked_pair();
    let mut into = [0_u8; 6];
    // SAFETY: kept until the completions.
    unsafe {
        let mut target = || Destination::from_raw(&[(into.as_mut_ptr(), 6)]);
        other.receive(any(None), target(), None, 1).unwrap();
        other.receive(any(None), target(), None, 2).unwrap();
    }
    assert!(other.cancel(1) && !other.cancel(1));
    one.inject(to_other, label(1), b"first").unwrap();
    let first = complete(&mut other, &mut one);
    assert!(first.token == 1 && matches!(first.result, Ok(Completed::Cancelled)));
    assert_eq!(complete(&mut other, &mut one).token, 2);
}

#[test]
fn end_of_a_process_ends_its_operations_but_keeps_what_arrived() {
    let (mut one, mut other, to_other, to_one) = linked_pair();
    one.inject(to_other, label(1), b"kept").unwrap();
    let bytes = vec![1_u8; 1 << 20];
    // SAFETY: kept until the end of the mesh.
    unsafe {
        let source = Source::from_raw(&[(bytes.as_ptr().cast_mut(), bytes.len())]);
        assert!(!one.send(to_other, label(2), source, false, 5).unwrap());
    }
    while other.peek(&Wanted { from: None, tag: Some(TagMatch::tag(2)) }, None).is_none() {
        other.progress();
    }
    let mut into = [0_u8; 4];
    let wanted = Wanted { from: Some(to_one), tag: Some(TagMatch::tag(9)) };
    // SAFETY: kept until the completions.
    unsafe { other.receive(wanted, Destination::from_raw(&[(into.as_mut_ptr(), 4)]), None, 3).unwrap() };
    drop(one);
    let completion = loop {
        other.progress();
        if let Some(completion) = other.next_completion() {
            break completion;
        }
    };
    assert!(
        completion.token == 3 && matches!(completion.result, Err(Error::Closed { .. })),
        "{completion:?}"
    );
    assert!(other.peek(&Wanted { from: None, tag: Some(TagMatch::tag(2)) }, None).is_none());
    // SAFETY: as above.
    unsafe { other.receive(any(None), Destination::from_raw(&[(into.as_mut_ptr(), 4)]), None, 4).unwrap() };
    assert_eq!(received(other.next_completion().unwrap()).length, 4);
    assert_eq!(&into, b"kept");
    assert!(other.inject(to_one, label(1), b"").is_err());
}

#[test]
fn registered_memory_is_written_and_read_until_its_registration_ends() {
    let (mut one, mut other, to_other, to_one) = linked_pair();
    let mut memory = vec![0_u8; 10_000];
    let base = memory.as_mut_ptr();
    let key = RegionKey::new(3, 7);
    let access = crate::RemoteAccess::GetPut;
    // SAFETY: the memory outlives the registration, and is read after the transfers only.
    let registration =
        unsafe { other.registrar().register(key, Destination::from_raw(&[(base, 10_000)]), access).unwrap() };
    let bytes = *b"written";
    // SAFETY: the bytes are kept until the end of the test.
    let source = || Transferring::Put(unsafe { Source::from_raw(&[(bytes.as_ptr().cast_mut(), 7)]) });
    let address = base.expose_provenance() as u64;
    // SAFETY: the local memory is kept.
    let put = |mesh: &mut Mesh, key, address| unsafe { mesh.transfer(to_other, key, address, &source()) };
    // The other end of the link is made by a thread.
    put(&mut one, key, address + 9_993).unwrap();
    assert_eq!(&memory[9_993..], b"written");
    let mut into = [0_u8; 7];
    // SAFETY: as above.
    let target = Transferring::Get(unsafe { Destination::from_raw(&[(into.as_mut_ptr(), 7)]) });
    // SAFETY: as above.
    unsafe { one.transfer(to_other, key, address + 9_993, &target).unwrap() };
    assert_eq!(&into, b"written");
    one.tell_written(to_other, 55, 7).unwrap();
    let told = complete(&mut other, &mut one);
    assert!(
        matches!(told.result, Ok(Completed::Written { by, immediate: 55, length: 7 }) if by == to_one),
        "{told:?}"
    );
    for wrong in [address - 1, address + 9_994, address + 10_001, 0, u64::MAX] {
        let error = put(&mut one, key, wrong).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    for wrong in [RegionKey::new(3, 8), RegionKey::new(4, 7), RegionKey::from_number(0)] {
        let error = put(&mut one, wrong, address).unwrap_err();
        assert!(matches!(error, Error::Expired { .. }), "{error}");
    }
    drop(registration);
    assert!(matches!(put(&mut one, key, address), Err(Error::Expired { .. })));
}

#[test]
fn messages_that_are_not_received_do_not_hold_up_later_ones() {
    const COUNT: u64 = 10_000;
    let (mut one, mut other, to_other, _) = linked_pair();
    // More than the ring takes, while the other process reads nothing.
    for tag in 0..COUNT {
        one.inject(to_other, label(tag), &tag.to_ne_bytes()).unwrap();
    }
    one.inject(to_other, Label { tag: None, immediate: Some(3) }, b"last").unwrap();
    let mut into = [0_u8; 8];
    // SAFETY: kept until the completions.
    let into = || unsafe { Destination::from_raw(&[(into.as_mut_ptr(), 8)]) };
    let (mut into, wanted) = (into, Wanted { from: None, tag: None });
    // SAFETY: as above.
    unsafe { other.receive(wanted, into(), None, 1).unwrap() };
    assert_eq!(received(complete(&mut other, &mut one)).immediate, Some(3));
    // The others have kept their order.
    for tag in 0..COUNT {
        // SAFETY: as above.
        unsafe { other.receive(any(None), into(), None, 1).unwrap() };
        assert_eq!(received(complete(&mut other, &mut one)).tag, tag);
    }
}

#[test]
fn end_of_a_process_is_seen_while_others_send_without_a_pause() {
    let (mut one, mut other, to_other, to_one) = linked_pair();
    let mut third = Mesh::new(&LinkBuilder::new()).unwrap();
    let (from, to) = (one.insert(&third.address()).unwrap(), third.insert(&one.address()).unwrap());
    let mut bytes = [0_u8; 8];
    // SAFETY: kept until the completions.
    let mut into = || unsafe { Destination::from_raw(&[(bytes.as_mut_ptr(), 8)]) };
    link(&mut third, to);
    link(&mut other, to_one);
    third.inject(to, label(1), b"linked").unwrap();
    // SAFETY: as above.
    unsafe { one.receive(any(Some(from)), into(), None, 1).unwrap() };
    assert_eq!(received(complete(&mut one, &mut third)).length, 6);
    // SAFETY: as above.
    unsafe { one.receive(any(Some(from)), into(), None, 2).unwrap() };
    drop(third);
    for round in 0.. {
        other.inject(to_one, label(5), b"busy").unwrap();
        // SAFETY: as above.
        unsafe { one.receive(any(Some(to_other)), into(), None, 3).unwrap() };
        let completion = complete(&mut one, &mut other);
        if completion.token == 2 {
            assert!(matches!(completion.result, Err(Error::Closed { .. })));
            return;
        }
        assert!(round < 50_000_000, "the end is not seen");
    }
}

/// A call that waits for another process reads the lanes, and leaves messages in the queue.
#[test]
fn messages_that_were_read_by_a_wait_keep_their_order() {
    let (mut one, mut other, to_other, _) = linked_pair();
    one.inject(to_other, label(0), b"").unwrap();
    let mut into = [0_u8; 1000];
    // SAFETY: kept until the completions.
    let mut into = || unsafe { Destination::from_raw(&[(into.as_mut_ptr(), 1000)]) };
    // SAFETY: as above.
    unsafe { other.receive(any(None), into(), None, 0).unwrap() };
    complete(&mut other, &mut one);
    for is_posted_later in [false, true] {
        for length in [0, 1000] {
            let bytes = vec![7; length];
            let mut post = |other: &mut Mesh| {
                for token in [1, 2] {
                    // SAFETY: as above.
                    unsafe { other.receive(any(None), into(), None, token).unwrap() };
                }
            };
            if !is_posted_later {
                post(&mut other);
            }
            for tag in [1, 2] {
                // The second one is read by the mesh, in the ring or as an offer.
                // SAFETY: kept until the completions.
                let source = unsafe { Source::from_raw(&[(bytes.as_ptr().cast_mut(), length)]) };
                // SAFETY: as above.
                unsafe { one.send(to_other, label(tag), source, length > 0, 9).unwrap() };
                if tag == 1 {
                    other.inbox.progress();
                }
            }
            if is_posted_later {
                post(&mut other);
            }
            for token in [1, 2] {
                let completion = complete(&mut other, &mut one);
                assert_eq!((completion.token, received(completion).tag), (token, token));
            }
            while length > 0 && one.sends.len() + one.completions.len() > 0 {
                one.progress();
                one.completions.clear();
            }
        }
    }
}

#[test]
fn link_is_made_by_later_calls_if_the_process_does_not_accept() {
    let builder = LinkBuilder::new();
    let mut mesh = Mesh::new(&builder).unwrap();
    // A listener without a thread.
    let endpoint = builder.bind().unwrap();
    let process = mesh.insert(&endpoint.address()).unwrap();
    for _ in 0..3 {
        let error = mesh.inject(process, label(1), b"one").unwrap_err();
        assert!(matches!(error, Error::NotAccepted { .. }), "{error}");
    }
    let pending = endpoint.pending(None, None).unwrap();
    let (shared, fds) = InboxShared::create(builder.settings.clone(), None, None).unwrap();
    let channel = pending.welcome(&shared, &fds).unwrap().unwrap();
    mesh.inject(process, label(1), b"one").unwrap();
    drop(channel);
    // It ends while another link is being made.
    let ending = builder.bind().unwrap();
    let process = mesh.insert(&ending.address()).unwrap();
    let error = mesh.inject(process, label(1), b"one").unwrap_err();
    assert!(matches!(error, Error::NotAccepted { .. }), "{error}");
    drop(ending);
    let error = loop {
        match mesh.inject(process, label(1), b"one").unwrap_err() {
            Error::NotAccepted { .. } => std::thread::yield_now(),
            error => break error,
        }
    };
    assert!(matches!(error, Error::PeerGone { .. }), "{error}");
}

/// The other process closes a connection of which it hears nothing, and is not taken for gone.
#[test]
fn link_is_made_again_if_the_process_has_closed_the_connection() {
    let builder = LinkBuilder::new();
    let mut mesh = Mesh::new(&builder).unwrap();
    let endpoint = builder.bind().unwrap();
    let process = mesh.insert(&endpoint.address()).unwrap();
    let refused = |error: &Error| matches!(error, Error::NotAccepted { .. });
    assert!(refused(&mesh.inject(process, label(1), b"one").unwrap_err()));
    drop(endpoint.pending(None, None).unwrap());
    assert!(refused(&mesh.inject(process, label(1), b"one").unwrap_err()), "it was closed");
    // Progress connects again, and is enough.
    let pending = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| endpoint.pending(None, None).unwrap());
        while !accepting.is_finished() {
            mesh.progress();
        }
        accepting.join().unwrap()
    });
    let (shared, fds) = InboxShared::create(builder.settings.clone(), None, None).unwrap();
    let channel = pending.welcome(&shared, &fds).unwrap().unwrap();
    while mesh.links.is_empty() {
        mesh.progress();
    }
    assert!(mesh.attempts.is_empty());
    mesh.inject(process, label(1), b"one").unwrap();
    drop(channel);
}

/// Two processes that connect to each other at a time have two links, and each may wait for an
/// answer over its own one.
#[test]
fn call_that_waits_answers_requests_over_links_that_are_made_meanwhile() {
    let (mut one, mut other, to_other, _) = linked_pair();
    let number = AtomicU64::new(40);
    let base = number.as_ptr().cast::<u8>();
    let key = RegionKey::new(0, 1);
    let access = crate::RemoteAccess::GetPut;
    // SAFETY: the memory outlives the registration, and is used as an atomic number.
    let registration =
        unsafe { other.registrar().register(key, Destination::from_raw(&[(base, 8)]), access) };
    let address = base.expose_provenance() as u64;
    let atomic = Atomic::new(AtomicType::U64, AtomicOperation::Sum).unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut previous = [0; 8];
            let operands = 2_u64.to_ne_bytes();
            one.change(to_other, (key, address), atomic, (&operands, &[]), &mut previous).unwrap();
            u64::from_ne_bytes(previous)
        });
        let mut rounds = 0_u64;
        while !asking.is_finished() {
            // As a call that waits does.
            other.inbox.progress();
            std::thread::yield_now();
            rounds += 1;
            if rounds > 2_000_000 {
                // Ends the other thread.
                other.progress();
            }
        }
        assert_eq!(asking.join().unwrap(), 40);
        assert!(rounds <= 2_000_000, "no answer");
    });
    assert_eq!(number.load(Ordering::Relaxed), 42);
    other.progress();
    assert_eq!(other.links.len(), 1);
    drop(registration);
}
