//! Requests that are dropped, that outlive their slot, and that wait for each other.

use std::time::{Duration, Instant};

use umf_link::{Engine, Error, Link, LinkSettings, SendRequest, TagMatch};

use super::{content, forced, pair, pair_with};

const LONG: usize = 100_000;

fn announcing() -> LinkSettings {
    let mut settings = LinkSettings::default();
    settings.max_unexpected = 0;
    settings
}

#[test]
fn dropped_request_keeps_next_message_of_slot() {
    let (mut one, mut other) = pair();
    let (first, second) = (content(LONG, 1), content(LONG, 2));
    let mut into = vec![0; LONG];
    let taken = one.start_send(1, &first).unwrap();
    other.recv(1, &mut into).unwrap();
    let mut open = one.start_send(2, &second).unwrap();
    drop(taken);
    assert!(!one.test_send(&mut open).unwrap(), "the peer has not received it");
    other.recv(2, &mut into).unwrap();
    assert!(into == second);
    assert!(one.test_send(&mut open).unwrap());
}

#[test]
fn message_of_dropped_receive_stays_in_order() {
    let (mut one, mut other) = pair();
    let receive_in_order = |other: &mut Link, receive: &dyn Fn(&mut Link) -> u8| {
        let mut unused = [0];
        let dropped = other.start_recv(1, &mut unused);
        other.progress().unwrap();
        drop(dropped);
        let values: Vec<u8> = (0..3).map(|_| receive(other)).collect();
        assert_eq!(values, [10, 11, 12]);
    };
    let posted = |other: &mut Link| {
        let mut byte = [0];
        let request = other.start_recv(1, &mut byte);
        other.wait_recv(request).unwrap();
        byte[0]
    };
    let blocking = |other: &mut Link| {
        let mut byte = [0];
        other.recv(1, &mut byte).unwrap();
        byte[0]
    };
    for receive in [&posted as &dyn Fn(&mut Link) -> u8, &blocking] {
        for value in 10..13 {
            one.send(1, &[value]).unwrap();
        }
        receive_in_order(&mut other, receive);
    }
}

#[test]
fn view_comes_after_message_of_dropped_receive() {
    let (mut one, mut other) = pair();
    let blocks: Vec<_> = (0..2_u64).map(|_| super::memory(4096)).collect();
    let _lent: Vec<_> = blocks
        .iter()
        .zip([100, 200])
        .map(|(block, length)| one.hand_over(1, block.part(0, length).unwrap()).unwrap())
        .collect();
    let mut unused = [0; 100];
    let dropped = other.start_recv(1, &mut unused);
    other.progress().unwrap();
    drop(dropped);
    let lengths = [0; 2].map(|_| other.recv_view(1).unwrap().len());
    assert_eq!(lengths, [100, 200]);
}

/// A receive that times out while its message goes through bounce buffers leaves it to a posted
/// one.
#[test]
fn message_of_timed_out_receive_is_assigned_to_posted_one() {
    let (mut one, mut other) = pair_with([forced(Engine::Bounce), forced(Engine::Bounce)]);
    let (bytes, mut into) = (content(LONG, 3), vec![0; LONG]);
    let mut send = one.start_send(1, &bytes).unwrap();
    other.set_timeout(Some(Duration::from_millis(20)));
    assert!(matches!(other.recv(1, &mut into), Err(Error::TimedOut { .. })));
    let mut receive = other.start_recv(1, &mut into);
    let end = Instant::now() + Duration::from_secs(5);
    while other.test_recv(&mut receive).unwrap().is_none() {
        one.test_send(&mut send).unwrap();
        assert!(Instant::now() < end, "the message is in the queue, and the receive does not get it");
    }
    drop(receive);
    assert!(into == bytes);
}

/// A full ring holds more records than are read in one turn.
#[test]
fn last_message_of_full_ring_comes_before_end() {
    for is_posted in [false, true] {
        let (mut one, mut other) = pair();
        for _ in 0..240 {
            one.send(1, b"").unwrap();
        }
        one.send(2, b"last").unwrap();
        drop(one);
        let mut into = [0; 4];
        if is_posted {
            let mut request = other.start_recv(2, &mut into);
            assert_eq!(other.test_recv(&mut request).unwrap().unwrap().length, 4);
        } else {
            assert_eq!(other.probe(2).unwrap().unwrap().length, 4);
        }
    }
}

/// A receiver that is woken reads all that has come before it sleeps again.
#[test]
fn receiver_reads_full_ring_before_sleep() {
    let mut settings = LinkSettings::default();
    settings.spin = Duration::ZERO;
    let (mut one, mut other) = pair_with([settings.clone(), settings]);
    let latencies = (0..10).map(|_| {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                other.recv(2, &mut [0; 8]).unwrap();
                let arrived = Instant::now();
                while other.probe(1).unwrap().is_some() {
                    other.recv(1, &mut [0; 8]).unwrap();
                }
                arrived
            });
            std::thread::sleep(Duration::from_millis(60));
            for _ in 0..230 {
                one.send(1, b"other").unwrap();
            }
            one.send(2, b"wanted").unwrap();
            let sent = Instant::now();
            receiver.join().unwrap().saturating_duration_since(sent)
        })
    });
    let least = latencies.min().unwrap();
    assert!(least < Duration::from_millis(10), "the message came {least:?} after it was sent");
}

/// Messages cost their receiver memory even if they are empty.
#[test]
fn empty_messages_count_as_unexpected() {
    let mut small = LinkSettings::default();
    small.max_unexpected = 50_000;
    let (mut one, mut other) = pair_with([LinkSettings::default(), small]);
    one.set_timeout(Some(Duration::from_millis(50)));
    let sent = (0..10_000).take_while(|_| {
        other.progress().unwrap();
        one.send(1, b"").is_ok()
    });
    let count = sent.count();
    assert!(count < 2000, "{count} messages are kept");
    for _ in 0..count {
        other.recv(1, &mut []).unwrap();
    }
}

#[test]
fn inline_sender_is_woken_when_announcing_ends() {
    let mut mine = forced(Engine::Inline);
    mine.spin = Duration::ZERO;
    let (mut one, mut other) = pair_with([mine, announcing()]);
    let mut latencies: Vec<Duration> = (0..10)
        .map(|_| {
            one.send(1, b"unexpected").unwrap();
            assert!(other.probe(1).unwrap().is_some());
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    one.send(2, b"later").unwrap();
                    Instant::now()
                });
                std::thread::sleep(Duration::from_millis(60));
                other.recv(1, &mut [0; 16]).unwrap();
                let received = Instant::now();
                let sent = sender.join().unwrap();
                other.recv(2, &mut [0; 16]).unwrap();
                sent.saturating_duration_since(received)
            })
        })
        .collect();
    latencies.sort_unstable();
    assert!(latencies[5] < Duration::from_millis(5), "the sender went on after {latencies:?}");
}

fn outstanding(count: usize, settings: [LinkSettings; 2], length: usize) {
    let (mut one, mut other) = pair_with(settings);
    let bytes: Vec<Vec<u8>> = (0..count).map(|number| content(length, number as u64)).collect();
    std::thread::scope(|scope| {
        let (one, bytes) = (&mut one, &bytes);
        scope.spawn(move || {
            let start = |(tag, bytes)| one.start_send(tag, bytes).unwrap();
            let mut sends: Vec<SendRequest<'_>> = (0..).zip(bytes).map(start).collect();
            one.finish(&mut sends, &mut []).unwrap();
        });
        for tag in (0..count).rev() {
            let mut into = vec![0; length];
            other.recv(tag as u64, &mut into).unwrap();
            assert!(into == bytes[tag], "{tag}");
        }
    });
}

#[test]
fn many_sends_are_received_in_reverse_order() {
    let default = LinkSettings::default;
    for length in [8, 5000] {
        // Offers have 256 slots.
        outstanding(250, [default(), default()], length);
        outstanding(250, [default(), announcing()], length);
    }
    outstanding(300, [default(), default()], 8);
    outstanding(200, [forced(Engine::Bounce), forced(Engine::Bounce)], 40_000);
}

#[test]
fn messages_of_one_sender_match_in_order_of_all_forms() {
    for settings in [LinkSettings::default(), announcing()] {
        let (mut one, mut other) = pair_with([LinkSettings::default(), settings]);
        let block = super::memory(4096);
        std::thread::scope(|scope| {
            let (one, block) = (&mut one, &block);
            scope.spawn(move || {
                let bytes: Vec<Vec<u8>> =
                    (0..600).map(|number| content(if number % 7 == 0 { 9000 } else { 4 }, number)).collect();
                let mut sends = Vec::new();
                let mut lent = Vec::new();
                for (number, bytes) in (0..).zip(&bytes) {
                    match number % 11 {
                        3 => one.send(number, bytes).unwrap(),
                        5 => lent.push(one.hand_over(number, block.part(0, 8).unwrap()).unwrap()),
                        _ => sends.push(one.start_send(number, bytes).unwrap()),
                    }
                }
                one.finish(&mut sends, &mut []).unwrap();
            });
            let mut into = vec![0; 9000];
            for number in 0..600 {
                if number % 13 == 0 {
                    std::thread::sleep(Duration::from_micros(500));
                }
                let received = other.recv(TagMatch::ANY, &mut into).unwrap();
                assert_eq!(received.tag, number);
            }
        });
    }
}
