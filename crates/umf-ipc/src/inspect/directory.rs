//! [`Search::add_directory`]: the ledgers of producers that answer in a directory, in other
//! containers.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::SendFlags;
use umf_os::socket::PeerTrust;

use super::find::{FoundLedger, OwnerStatus, Search, sealed};
use super::ledger::Ledger;
use crate::identity::Nonce;
use crate::rendezvous::{Directory, DirectoryResult};
use crate::transfer::socket::client::{Answer, Deadline, connect_in, receive};
use crate::transfer::socket::{Request, directory_prefix};

/// The time that a producer has to answer. A stopped one does not.
const TIMEOUT: Duration = Duration::from_millis(250);

impl Search {
    /// Adds the ledgers of the producers that answer in a directory and were not found in `/proc`.
    /// They are in other pid namespaces, or their files may not be inspected. Producers of other
    /// users do not answer, unless this process is root's or they permit it.
    ///
    /// # Errors
    /// The directory cannot be used or listed.
    pub fn add_directory(&mut self, directory: &Directory) -> DirectoryResult<()> {
        let prefix = directory_prefix();
        for name in directory.names(&prefix)? {
            // Domains and endpoints have other names.
            let Some(nonce) = Nonce::from_hex(&name[prefix.len()..]) else { continue };
            if self.by_nonce(nonce).is_some_and(|found| found.owner.pid().is_some()) {
                continue;
            }
            let Some(ledger) = request_ledger(directory, &name, nonce) else {
                self.silent += 1;
                continue;
            };
            let owner = OwnerStatus::Elsewhere { pid: ledger.identity().pid };
            match self.found.iter_mut().find(|found| found.ledger.identity().nonce == nonce) {
                Some(found) => found.owner = owner,
                None => self.found.push(FoundLedger { ledger, owner, holders: Vec::new() }),
            }
        }
        self.found.sort_by_key(|found| found.ledger.identity().pid);
        Ok(())
    }
}

/// Returns the ledger of the producer that answers at a name. It has answered, so it runs.
fn request_ledger(directory: &Directory, name: &str, nonce: Nonce) -> Option<Ledger> {
    let deadline = Deadline::after(TIMEOUT);
    let connection = connect_in(directory, name, deadline).ok()?;
    // Root sees the processes of all users, in `/proc` as well. Whatever it gets is checked below.
    let is_root = umf_os::process::effective_uid() == 0;
    if !is_root && umf_os::socket::peer_trust(connection.as_fd()) != Ok(PeerTrust::Trusted) {
        return None;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(&connection, &Request::Ledger.encode(nonce), flags).ok()?;
    let Answer::Fd { fd, .. } = receive(&connection, deadline).ok()? else { return None };
    // For reading alone, as a process that only inspects it.
    let file = umf_os::file::reopen(fd.as_fd(), false).ok()?;
    let ledger = sealed(&file).then(|| Ledger::from_file(file)).flatten()?;
    (ledger.identity().nonce == nonce).then_some(ledger)
}
