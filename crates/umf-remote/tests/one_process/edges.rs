//! Reads and grants beside events that must not disturb them: frees, pauses, limits, settings.

use std::time::{Duration, Instant};

use umf_ipc::Handle;
use umf_remote::{Error, Remote, RemoteImporter, Server};

use crate::producer::{Producer, serve, settings};

/// Longer than any read by message.
const LONG: usize = 1 << 20;
/// The bound of waits for what happens soon.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(importer: &RemoteImporter, server: &Server, handle: &Handle) -> Remote {
    importer.open(&server.remote_handle(handle).unwrap()).unwrap()
}

#[test]
fn grant_needs_a_lease() {
    let producer = Producer::new(false);
    let settings = settings();
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let (_, handle) = producer.block(LONG, 1);
    let remote = open(&importer, &server, &handle);
    assert_eq!(remote.read(0, LONG).unwrap()[LONG - 1], 1);
    assert_eq!(remote.read(0, 10).unwrap()[9], 1);
    // Nothing would keep the memory of a freed block while data is copied into it.
    assert!(matches!(remote.grant(Duration::from_secs(1)), Err(Error::Refused { .. })));
}

#[test]
fn read_of_a_freed_block_ends_no_grant() {
    let producer = Producer::new(true);
    let settings = settings();
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let (_, kept) = producer.block(LONG, 1);
    let (freed_address, freed) = producer.block(LONG, 2);
    let (kept, freed) = (open(&importer, &server, &kept), open(&importer, &server, &freed));
    assert_eq!(freed.read(0, LONG).unwrap()[0], 2);
    let grant = kept.grant(Duration::from_secs(5)).unwrap();
    producer.free(freed_address);
    // The server looks for freed blocks meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    assert!(matches!(freed.read(0, LONG), Err(Error::Stale { .. })));
    grant.write(0, b"granted").unwrap();
}

#[test]
fn read_that_is_polled_late_has_its_data() {
    let producer = Producer::new(true);
    let mut settings = settings();
    let Some(server) = serve(&producer, &settings) else { return };
    settings.timeout = Duration::from_secs(2);
    let importer = RemoteImporter::new(producer.importer, settings);
    let (_, handle) = producer.block(LONG, 1);
    let remote = open(&importer, &server, &handle);
    assert_eq!(remote.read(0, 10).unwrap()[9], 1);
    // The program computes meanwhile, for longer than a call may wait.
    let read = remote.start_read(0, LONG).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(read.wait().unwrap()[LONG - 1], 1);
    let mut read = remote.start_read(0, LONG).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let data = loop {
        match read.poll().unwrap() {
            Some(data) => break data,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(data[LONG - 1], 1);
    let mut read = remote.start_read(0, LONG).unwrap();
    let data = loop {
        if let Some(data) = read.wait_for(Duration::from_micros(1)).unwrap() {
            break data;
        }
    };
    assert_eq!(data[LONG - 1], 1);
    assert!(read.wait_for(Duration::MAX).unwrap().is_none(), "it has ended");
}

#[test]
fn block_without_a_registration_is_read_by_long_messages() {
    let producer = Producer::new(true);
    let mut settings = settings();
    settings.small_read = 64;
    settings.max_registered_bytes = 1;
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let (_, handle) = producer.block(LONG, 1);
    let remote = open(&importer, &server, &handle);
    assert_eq!(remote.read(0, LONG).unwrap()[LONG - 1], 1);
    let statistics = server.statistics();
    assert_eq!(statistics.bytes_by_messages, LONG as u64);
    assert!(statistics.requests < 200, "{statistics:?}");
}

#[test]
fn key_of_a_read_that_was_given_up_is_released() {
    let producer = Producer::new(true);
    let mut settings = settings();
    settings.max_registered = 1;
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let blocks = [1, 2, 3].map(|byte| open(&importer, &server, &producer.block(LONG, byte).1));
    assert_eq!(blocks[0].read(0, 1).unwrap()[0], 1);
    drop(blocks[0].start_read(0, LONG).unwrap());
    // The producer has no room for a second key. Its answer makes the importer release the first.
    assert_eq!(blocks[1].read(0, LONG).unwrap()[0], 2);
    let before = server.statistics().bytes_by_messages;
    assert_eq!(blocks[2].read(0, LONG).unwrap()[0], 3);
    assert_eq!(server.statistics().bytes_by_messages, before, "read one-sided");
}

#[test]
fn unmapping_a_block_during_a_read_harms_its_reader_only() {
    let producer = Producer::new(true);
    let settings = settings();
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let (address, handle) = producer.block(64 * LONG, 1);
    let remote = open(&importer, &server, &handle);
    remote.prefetch().unwrap();
    // The importer takes nothing of it, so that the fabric is in the middle of its answers.
    let mut read = remote.start_read(0, 64 * LONG).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let _ = read.poll().unwrap();
    producer.free(address);
    let start = Instant::now();
    while server.statistics().registered > 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", server.statistics());
        std::thread::sleep(Duration::from_millis(5));
    }
    producer.importer.evict_idle();
    let error = read.wait().unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Stale { .. } | Error::TimedOut { .. } | Error::ProducerLost { .. }));
    let (_, handle) = producer.block(LONG, 2);
    assert_eq!(open(&importer, &server, &handle).read(0, LONG).unwrap()[0], 2);
}

#[test]
fn grant_outlasts_a_pause() {
    let producer = Producer::new(true);
    let mut settings = settings();
    settings.idle = Duration::from_secs(1);
    settings.max_grant = Duration::from_secs(600);
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let (_, handle) = producer.block(LONG, 1);
    let remote = open(&importer, &server, &handle);
    let grant = remote.grant(Duration::from_secs(600)).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(remote.read(0, 10).unwrap()[9], 1);
    grant.write(0, b"granted").unwrap();
    assert_eq!(&*remote.read(0, 7).unwrap(), b"granted");
}

#[test]
fn reads_at_once_with_room_for_one_key_are_right() {
    let producer = Producer::new(true);
    let mut settings = settings();
    settings.max_registered = 1;
    settings.max_grant = Duration::from_secs(600);
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let handles: Vec<Handle> = (0..6).map(|seed| producer.block(16 * LONG, seed).1).collect();
    let remotes: Vec<Remote> = handles.iter().map(|handle| open(&importer, &server, handle)).collect();
    // The connection stays: a grant is one of it.
    let grant = remotes[0].grant(Duration::from_secs(600)).unwrap();
    let check = |seed: usize, data: &[u8]| assert!(data.iter().all(|byte| *byte == seed as u8), "{seed}");
    let mut reads = Vec::new();
    for (seed, remote) in remotes.iter().enumerate() {
        let mut read = remote.start_read(0, 16 * LONG).unwrap();
        // The reply to the request for its key comes before the next request.
        std::thread::sleep(Duration::from_millis(2));
        match read.poll().unwrap() {
            Some(data) => check(seed, &data),
            None => reads.push((seed, read)),
        }
    }
    for (seed, read) in reads {
        check(seed, &read.wait().unwrap());
    }
    grant.write(0, b"the same connection").unwrap();
}
