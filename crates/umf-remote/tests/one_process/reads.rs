//! Reads and writes of all sizes, and remote handles as bytes and text.

use std::time::Duration;

use umf_remote::{Error, RemoteHandle, RemoteImporter};

use crate::producer::{Producer, serve, settings};

fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

#[test]
fn reads_of_all_sizes() {
    let producer = Producer::new(true);
    let settings = settings();
    let Some(server) = serve(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let size = 5 << 20;
    let (address, handle) = producer.block_of(&pattern(size, 3));
    let expected = pattern(size, 3);
    let bytes = server.remote_handle(&handle).unwrap().to_bytes();
    let remote = importer.open_bytes(&bytes).unwrap();
    assert_eq!(remote.len(), size);
    for (offset, length) in
        [(0, 1), (0, 0), (size, 0), (7, 100), (0, 16256), (1, 16257), (5, 1 << 20), (0, size), (size - 1, 1)]
    {
        let data = remote.read(offset, length).unwrap();
        assert!(*data == expected[offset..offset + length], "{offset} {length}");
        let mut into = vec![0; length];
        remote.read_into(offset, &mut into).unwrap();
        assert!(into == expected[offset..offset + length], "{offset} {length}");
    }
    let many = remote.read_many(&[(0, 10), (100, 100_000), (7, 16)]).unwrap();
    assert!(*many[1] == expected[100..100_100] && *many[2] == expected[7..23]);
    assert!(remote.is_current().unwrap());
    assert!(matches!(remote.read(size, 1), Err(Error::OutOfBounds { .. })));

    let grant = remote.grant(Duration::from_secs(5)).unwrap();
    let new = pattern(3 << 20, 77);
    grant.write(13, &new).unwrap();
    grant.write(1, b"small").unwrap();
    assert!(*remote.read(13, new.len()).unwrap() == new);
    assert_eq!(&*remote.read(1, 5).unwrap(), b"small");
    assert_eq!(server.statistics().grants, 1);
    grant.end().unwrap();

    producer.free(address);
    for length in [10, 100_000, 0] {
        assert!(matches!(remote.read(0, length), Err(Error::Stale { .. })), "{length}");
    }
    assert!(!remote.is_current().unwrap());
    println!("{:?} {}", server.statistics(), server.address());
}

#[test]
fn bytes_and_text_of_a_remote_handle() {
    let producer = Producer::new(true);
    let Some(server) = serve(&producer, &settings()) else { return };
    let (_, handle) = producer.block(100, 0);
    let remote = server.remote_handle(&handle).unwrap();
    let bytes = remote.to_bytes();
    assert!(bytes.len() <= RemoteHandle::MAX_SIZE);
    assert_eq!(RemoteHandle::from_bytes(&bytes).unwrap(), remote);
    assert_eq!(remote.to_string().parse::<RemoteHandle>().unwrap(), remote);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(RemoteHandle::from_bytes(&damaged).is_err(), "{at}");
        assert!(RemoteHandle::from_bytes(&bytes[..at]).is_err(), "{at}");
    }
}
