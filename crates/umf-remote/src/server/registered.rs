//! [`RegisteredBlocks`]: the blocks that importers may read one-sided.
//!
//! Each block has a registration of its own, which is used for one generation only. So a key never
//! gives access to another block; and a registration never shows the pages from before a trim,
//! because the pages of a block are not released as long as its handle is current.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use libfabric_sys::FI_REMOTE_READ;
use umf_ipc::{Handle, Mapping};

use crate::Result;
use crate::fabric::{Domain, Registration};
use crate::protocol::Reply;

/// A slot and a generation of it.
type Block = (u32, u64);

/// A registered block and its slot in the ledger.
struct Registered {
    // The registrations are closed before the mapping.
    data: Registration,
    slot: Registration,
    /// Without a lease: the block may be freed.
    mapping: Mapping<'static>,
    users: HashSet<u64>,
    /// Its place in the order of idle blocks, if no importer uses it.
    idle_since: Option<u64>,
    /// When it was found that the block was freed.
    freed: Option<Instant>,
}

/// The registered blocks of a server.
#[derive(Default)]
pub(super) struct RegisteredBlocks {
    blocks: HashMap<Block, Registered>,
    /// Blocks without a user, the one that became so first at the front.
    idle: BTreeMap<u64, Block>,
    bytes: u64,
    next: u64,
    max_blocks: u64,
    max_bytes: u64,
}

impl RegisteredBlocks {
    /// The limits are without effect if they are 0.
    pub(super) fn new(max_blocks: u64, max_bytes: u64) -> Self {
        Self { max_blocks, max_bytes, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Finds or makes the registration of a current block, for a session. Returns `None` if the
    /// limits do not permit one more.
    pub(super) fn locate(
        &mut self,
        domain: &Arc<Domain>,
        handle: &Handle,
        session: u64,
        mapping: Mapping<'static>,
    ) -> Result<Option<Reply<'static>>> {
        let block = (handle.slot(), handle.generation());
        if !self.blocks.contains_key(&block) {
            let Some(base) = mapping.address().as_ptr().and_then(core::ptr::NonNull::new) else {
                return Ok(None);
            };
            let bytes = mapping.len() as u64;
            if !self.has_room(bytes) {
                return Ok(None);
            }
            // SAFETY: the mapping is dropped after both registrations, and keeps block and ledger
            // mapped.
            let (data, slot) = unsafe {
                let slot = mapping.ledger_words();
                (
                    Registration::new(domain, base, mapping.len(), FI_REMOTE_READ)?,
                    Registration::new(domain, slot.cast(), SLOT_SIZE, FI_REMOTE_READ)?,
                )
            };
            self.bytes += bytes;
            let mapping = mapping.without_lease();
            let registered =
                Registered { data, slot, mapping, users: HashSet::new(), idle_since: None, freed: None };
            self.blocks.insert(block, registered);
        }
        let Some(registered) = self.blocks.get_mut(&block) else { return Ok(None) };
        registered.users.insert(session);
        if let Some(since) = registered.idle_since.take() {
            self.idle.remove(&since);
        }
        Ok(Some(Reply::Located {
            key: registered.data.key(),
            address: registered.data.base(),
            slot_key: registered.slot.key(),
            slot_address: registered.slot.base(),
        }))
    }

    /// Makes room for a block, if idle ones suffice.
    fn has_room(&mut self, bytes: u64) -> bool {
        if self.max_bytes != 0 && bytes > self.max_bytes {
            return false;
        }
        loop {
            let is_in = |value: u64, max: u64| max == 0 || value <= max;
            if is_in(self.blocks.len() as u64 + 1, self.max_blocks)
                && is_in(self.bytes + bytes, self.max_bytes)
            {
                return true;
            }
            let Some((_, block)) = self.idle.pop_first() else { return false };
            self.remove(block);
        }
    }

    fn remove(&mut self, block: Block) {
        if let Some(registered) = self.blocks.remove(&block) {
            self.bytes -= registered.mapping.len() as u64;
            if let Some(since) = registered.idle_since {
                self.idle.remove(&since);
            }
            let Registered { data, slot, mapping, .. } = registered;
            let are_closed = [data.close(), slot.close()];
            if are_closed.contains(&false) {
                // Peers may still read it.
                core::mem::forget(mapping);
            }
        }
    }

    /// Ends a session's use of a block.
    pub(super) fn release(&mut self, block: Block, session: u64) {
        let Some(registered) = self.blocks.get_mut(&block) else { return };
        if registered.users.remove(&session) && registered.users.is_empty() {
            self.next += 1;
            registered.idle_since = Some(self.next);
            self.idle.insert(self.next, block);
        }
    }

    /// Ends a session's use of all blocks.
    pub(super) fn release_all(&mut self, session: u64) {
        let used = |(block, registered): (&Block, &Registered)| {
            registered.users.contains(&session).then_some(*block)
        };
        let used: Vec<Block> = self.blocks.iter().filter_map(used).collect();
        for block in used {
            self.release(block, session);
        }
    }

    /// Closes the registrations of freed blocks. Those with a user stay for a while: a refused key
    /// breaks the connections of most providers, and by the key its user learns that the block is
    /// stale.
    pub(super) fn sweep(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (block, registered) in &mut self.blocks {
            if registered.mapping.is_current() {
                continue;
            }
            let since = *registered.freed.get_or_insert(now);
            if registered.users.is_empty() || now.duration_since(since) > GRACE {
                ended.push(*block);
            }
        }
        for block in ended {
            self.remove(block);
        }
    }
}

/// How long the registration of a freed block that has a user stays.
const GRACE: Duration = Duration::from_secs(2);

/// Bytes of a slot that importers read: its generation, then the ledger's nonce.
pub(crate) const SLOT_SIZE: usize = 24;
