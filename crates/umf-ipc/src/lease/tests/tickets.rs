//! Tickets in a lease table, without processes.

use super::*;
use crate::handle::Ticket;

/// Claims a ticket as an open does. Returns the opener's lease.
fn claim(importer: &ImporterLeases, slot: u32, ticket: Ticket) -> Option<Lease> {
    let lease = open(importer, slot);
    if importer.claim(ticket, || panic!("it has a descriptor of the table")).unwrap() {
        return Some(lease);
    }
    close(lease);
    None
}

#[test]
fn ticket_keeps_an_export_until_it_is_claimed_and_closed() {
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    for slot in [3, SLOTS - 1] {
        let ticket = sender.send(slot, 4096, 1).unwrap();
        assert!(is_leased(&table, slot) && !is_leased(&table, slot ^ 1));
        assert_eq!(sender.poll_tickets(), 1);
        let lease = claim(&opener, slot, ticket).expect("the sender lives");
        assert_eq!(sender.poll_tickets(), 0);
        assert!(is_leased(&table, slot), "the opener has it");
        assert!(claim(&opener, slot, ticket).is_none(), "it was for one reader");
        close(lease);
        assert!(!is_leased(&table, slot));
    }
}

#[test]
fn ticket_is_claimed_by_as_many_readers_as_the_sender_said() {
    let table = table();
    let (sender, opener, other) = (importer(&table), importer(&table), importer(&table));
    let ticket = sender.send(9, 4096, 3).unwrap();
    let first = claim(&opener, 9, ticket).unwrap();
    let second = claim(&other, 9, ticket).unwrap();
    assert_eq!(sender.poll_tickets(), 1);
    close(first);
    close(second);
    assert!(is_leased(&table, 9), "one reader is missing");
    close(claim(&other, 9, ticket).unwrap());
    assert!(claim(&opener, 9, ticket).is_none());
    assert_eq!(sender.poll_tickets(), 0);
    assert!(!is_leased(&table, 9));
}

#[test]
fn cancelled_ticket_is_not_claimed() {
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    let (kept, cancelled) = (sender.send(4, 4096, 1).unwrap(), sender.send(4, 4096, 2).unwrap());
    assert!(sender.cancel(4, cancelled) && !sender.cancel(4, cancelled));
    assert!(!opener.cancel(4, kept), "another sender's");
    assert!(claim(&opener, 4, cancelled).is_none());
    let lease = claim(&opener, 4, kept).unwrap();
    assert!(!sender.cancel(4, kept), "claimed");
    close(lease);
    assert!(!is_leased(&table, 4));
}

#[test]
fn ticket_of_a_killed_sender_is_lost_and_releases_the_export() {
    let table = table();
    let opener = importer(&table);
    let (before, after) = {
        let sender = importer(&table);
        let tickets = (sender.send(2, 4096, 1).unwrap(), sender.send(2, 4096, 1).unwrap());
        sender.simulate_kill();
        tickets
    };
    // The producer does not know yet that the sender is dead.
    let lease = claim(&opener, 2, before).unwrap();
    assert!(is_leased(&table, 2));
    close(lease);
    assert!(!is_leased(&table, 2));
    assert!(claim(&opener, 2, after).is_none());
    // The words are free for a new sender in the same row, with other numbers.
    let sender = importer(&table);
    let sent = sender.send(2, 4096, 1).unwrap();
    assert!(claim(&opener, 2, after).is_none());
    close(claim(&opener, 2, sent).unwrap());
}

/// The opener's row comes before the sender's one, so that the scan has passed it.
#[test]
fn claim_behind_the_scan_is_found() {
    let table = table();
    let (opener, sender) = (importer(&table), importer(&table));
    // The opened bitmap has the opener's row when the scan begins.
    close(open(&opener, 6));
    let ticket = sender.send(6, 4096, 1).unwrap();
    let mut scan = table.scan(6).unwrap();
    assert!(table.is_leased(6, &mut scan));
    let lease = claim(&opener, 6, ticket).unwrap();
    assert_eq!(sender.poll_tickets(), 0);
    assert!(table.is_leased(6, &mut scan), "the scan has passed the row of the opener");
    close(lease);
    assert!(!table.is_leased(6, &mut scan));
}

#[test]
fn dropped_sender_keeps_the_rows_of_its_tickets() {
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    let ticket = sender.send(8, 4096, 1).unwrap();
    drop(sender);
    assert!(is_leased(&table, 8));
    let lease = claim(&opener, 8, ticket).expect("the process of the sender lives");
    close(lease);
}

#[test]
fn dropped_sender_releases_the_rows_of_claimed_tickets() {
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    let ticket = sender.send(8, 4096, 1).unwrap();
    close(claim(&opener, 8, ticket).unwrap());
    drop(sender);
    assert!(!is_leased(&table, 8));
    assert_eq!(table.importers(), 1, "the opener");
}

#[test]
fn more_tickets_than_a_row_has_words() {
    const TICKETS: usize = 20_000;
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    let sent: Vec<_> = (0..TICKETS as u32).map(|n| sender.send(n % SLOTS, 4096, 1).unwrap()).collect();
    let words: std::collections::HashSet<_> = sent.iter().map(|ticket| (ticket.row, ticket.word)).collect();
    assert_eq!(words.len(), TICKETS);
    assert_eq!(sender.poll_tickets(), TICKETS);
    let claimed: Vec<_> =
        (0..).zip(&sent).map(|(n, &ticket)| claim(&opener, n % SLOTS, ticket).unwrap()).collect();
    assert_eq!(sender.poll_tickets(), 0);
    claimed.into_iter().for_each(close);
    assert!((0..SLOTS).all(|slot| !is_leased(&table, slot)));
    // The words are used again.
    let again = sender.send(0, 4096, 1).unwrap();
    assert!(words.contains(&(again.row, again.word)));
}

#[test]
fn limit_of_tickets_counts_unclaimed_ones_only() {
    let table = small_table(128);
    let (sender, opener) = (importer(&table), importer(&table));
    let mut sent = Vec::new();
    let limit = loop {
        match sender.send(5, 4096, 1) {
            Ok(ticket) => sent.push(ticket),
            Err(Error::LimitReached { limit, .. }) => break limit,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((limit, sent.len()), (524_288, 524_288));
    close(claim(&opener, 5, sent[77]).unwrap());
    sent[77] = sender.send(5, 4096, 1).expect("a ticket was claimed");
    assert!(matches!(sender.send(5, 4096, 1), Err(Error::LimitReached { .. })));
    for &ticket in &sent {
        assert!(sender.cancel(5, ticket));
    }
    assert!(!is_leased(&table, 5));
}

/// Another process may write any value into `events`.
#[test]
fn numbers_of_open_tickets_differ() {
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    let first = sender.send(3, 4096, 1).unwrap();
    sender.set_events(first.number - 1);
    let second = sender.send(3, 4096, 1).unwrap();
    assert_ne!(first.number, second.number);
    for ticket in [first, second] {
        close(claim(&opener, 3, ticket).unwrap());
    }
    assert_eq!(sender.poll_tickets(), 0);
    assert!(!is_leased(&table, 3));
}

#[test]
fn ticket_that_nothing_sent_is_not_claimed() {
    let table = table();
    let (sender, opener) = (importer(&table), importer(&table));
    let sent = sender.send(1, 4096, 1).unwrap();
    for forged in [
        Ticket { row: u16::MAX, ..sent },
        Ticket { word: u16::MAX, ..sent },
        Ticket { number: sent.number + 1, ..sent },
        Ticket { word: sent.word + 1, ..sent },
        Ticket { row: sent.row + 1, ..sent },
    ] {
        assert!(claim(&opener, 1, forged).is_none(), "{forged:?}");
    }
    close(claim(&opener, 1, sent).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares senders and openers with a list of tickets and a list of leases.
    #[test]
    fn tickets_behave_like_a_list(
        ops in prop::collection::vec((0_u8..6, 0_usize..3, 0_u32..4, any::<prop::sample::Index>()), 1..200),
    ) {
        let table = table();
        let processes: Vec<_> = (0..3).map(|_| importer(&table)).collect();
        // Sender, slot, ticket, readers left; all that were ever sent.
        let mut tickets: Vec<(usize, u32, Ticket, u16)> = Vec::new();
        let mut leases: Vec<(u32, Lease)> = Vec::new();
        for (op, process, slot, index) in ops {
            let own = &processes[process];
            match op {
                0 | 1 => {
                    let readers = u16::from(op) + 1;
                    tickets.push((process, slot, own.send(slot, 4096, readers).unwrap(), readers));
                }
                2 if !tickets.is_empty() => {
                    let (_, slot, ticket, left) = index.get(&tickets);
                    let (slot, ticket, is_open) = (*slot, *ticket, *left > 0);
                    let lease = claim(own, slot, ticket);
                    prop_assert_eq!(lease.is_some(), is_open);
                    if let Some(lease) = lease {
                        leases.push((slot, lease));
                        tickets.iter_mut().filter(|other| other.2 == ticket).for_each(|other| other.3 -= 1);
                    }
                }
                3 if !leases.is_empty() => close(leases.swap_remove(index.index(leases.len())).1),
                4 if !tickets.is_empty() => {
                    let at = index.index(tickets.len());
                    let (sender, slot, ticket, left) = &mut tickets[at];
                    let cancelled = own.cancel(*slot, *ticket);
                    prop_assert_eq!(cancelled, *sender == process && *left > 0);
                    if cancelled {
                        *left = 0;
                    }
                }
                _ => {
                    let open = tickets.iter().filter(|(sender, .., left)| *sender == process && *left > 0);
                    prop_assert_eq!(own.poll_tickets(), open.count());
                }
            }
            for slot in 0..4 {
                // A claimed ticket counts until its sender polls.
                processes.iter().for_each(|process| process.poll_tickets_of(slot));
                let is_sent = tickets.iter().any(|(_, of, _, left)| *of == slot && *left > 0);
                let expected = is_sent || leases.iter().any(|(of, _)| *of == slot);
                prop_assert_eq!(is_leased(&table, slot), expected);
            }
        }
    }
}
