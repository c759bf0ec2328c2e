use super::*;

/// Collects with a header mapping of its own, as `umf gc` does. Returns the leased slots.
fn leased_slots(table: &LeaseTable) -> Vec<u32> {
    let shape = TableShape { slots: SLOTS, rows: table.rows() };
    let head = layout::HeaderMapping::new(fd(table), shape).unwrap();
    let identity = umf_os::file::identity(fd(table)).unwrap();
    let file = fd(table);
    let collector = Collector::begin(file.as_fd(), identity, &head).unwrap().unwrap();
    assert!(Collector::begin(file.as_fd(), identity, &head).unwrap().is_none(), "one at a time");
    collector.leased_slots().unwrap().unwrap().iter().collect()
}

#[test]
fn collector_finds_slots_in_rows_of_living_importers_only() {
    let table = table();
    let (one, other, ended) = (importer(&table), importer(&table), importer(&table));
    let leases = [open(&one, 0), open(&one, 511), open(&other, 511), open(&other, SLOTS - 1)];
    open(&ended, 77);
    ended.simulate_kill();
    assert!(!one.is_collected());
    assert_eq!(leased_slots(&table), [0, 511, SLOTS - 1]);
    assert!(one.is_collected() && other.is_collected());
    assert!(!is_leased(&table, 77), "the row without an owner is cleared");
    close(leases[1]);
    assert_eq!(leased_slots(&table), [0, 511, SLOTS - 1]);
    close(leases[2]);
    close(leases[3]);
    assert_eq!(leased_slots(&table), [0]);
    close(leases[0]);
    assert_eq!(leased_slots(&table), [0_u32; 0]);
}

#[test]
fn collector_keeps_slots_of_tickets_whose_sender_lives() {
    let table = table();
    let (sender, ended) = (importer(&table), importer(&table));
    let lease = open(&sender, 3);
    let ticket = sender.send(3, 4096, 1).unwrap();
    close(lease);
    open(&ended, 4);
    let lost = ended.send(4, 4096, 1).unwrap();
    ended.simulate_kill();
    assert_eq!(leased_slots(&table), [3]);
    // The collector has cleared the ticket of the process that has ended.
    let reader = importer(&table);
    let opened = open(&reader, 4);
    let fetch = || unreachable!("the reader has a descriptor");
    assert!(!reader.claim(lost, fetch).unwrap());
    close(opened);
    let opened = open(&reader, 3);
    assert!(reader.claim(ticket, fetch).unwrap());
    assert_eq!(leased_slots(&table), [3]);
    close(opened);
    sender.poll_tickets();
    assert_eq!(leased_slots(&table), [0_u32; 0]);
}

/// All words of a table can have any value.
#[test]
fn corrupt_rows_make_no_collector_fail() {
    let table = small_table(4);
    let one = importer(&table);
    let lease = open(&one, 9);
    let shape = TableShape { slots: SLOTS, rows: table.rows() };
    let row = vec![0xff; usize::try_from(shape.row_size()).unwrap()];
    let own = 0;
    for number in (0..shape.rows).filter(|&number| number != own) {
        rustix::io::pwrite(fd(&table), &row, shape.row(number)).unwrap();
    }
    let height = core::mem::offset_of!(layout::TableHeader, height) as u64;
    rustix::io::pwrite(fd(&table), &u32::MAX.to_le_bytes(), height).unwrap();
    // Nothing else owns the rows, so that they count nothing.
    assert_eq!(leased_slots(&table), [9]);
    close(lease);
}
