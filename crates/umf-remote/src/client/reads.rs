//! Reads of a [`Session`]: by messages, or one-sided and then validated; and the blocks whose keys
//! are known.

use std::sync::Arc;
use std::time::Instant;

use umf_ipc::Handle;

use super::session::{Failure, Operation, Purpose, Session, Work, unexpected};
use crate::Result;
use crate::fabric::Buffer;
use crate::protocol::{Reply, Request, WINDOW};
use crate::server::SLOT_SIZE;
use crate::settings::MAX_SMALL;

/// A block that can be read one-sided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    key: u64,
    address: u64,
    slot_key: u64,
    slot_address: u64,
}

/// A located block, and the number of its users.
#[derive(Debug)]
pub(super) struct KnownBlock {
    /// `None`: it is read by messages.
    located: Option<Located>,
    users: usize,
    /// Its place in the order of idle blocks, if it has no user.
    idle_since: Option<u64>,
}

/// A block of the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey(u32, u64);

impl BlockKey {
    pub(crate) fn of(handle: &Handle) -> Self {
        Self(handle.slot(), handle.generation())
    }
}

/// A read in progress.
#[derive(Debug)]
pub(super) struct Read {
    handle: Handle,
    offset: usize,
    length: usize,
    buffer: Arc<Buffer>,
    located: Option<Located>,
    /// The bytes that were asked for so far.
    asked: usize,
    /// Operations and requests in flight.
    outstanding: usize,
    /// Where generation and nonce go.
    slot: Option<Arc<Buffer>>,
    /// When it began, or a part of it arrived.
    last_progress: Instant,
    /// Whether it counts as a user of its block, whose key then stays known.
    is_user: bool,
    result: Option<Result<(), Failure>>,
}

impl Session {
    /// Begins to read a part of a block. [`Self::take_read`] returns the outcome.
    pub(crate) fn begin_read(&mut self, handle: &Handle, offset: usize, length: usize) -> Result<u64> {
        let buffer = self.pool.take(length)?;
        let number = self.next();
        let read = Read {
            handle: *handle,
            offset,
            length,
            buffer,
            located: None,
            asked: 0,
            outstanding: 0,
            slot: None,
            last_progress: Instant::now(),
            is_user: false,
            result: None,
        };
        self.work.insert(number, Work::Read(Box::new(read)));
        if (1..=self.small).contains(&length) {
            self.unposted.push_back(number);
        } else {
            self.locate(number, handle);
        }
        self.post_or_break();
        Ok(number)
    }

    /// Asks for the key of a block, if it is not known.
    fn locate(&mut self, read: u64, handle: &Handle) {
        let block = BlockKey::of(handle);
        match self.blocks.get(&block) {
            Some(known) => {
                let located = known.located;
                self.use_block(block);
                if let Some(Work::Read(read)) = self.work.get_mut(&read) {
                    (read.located, read.is_user) = (located, true);
                }
                self.unposted.push_back(read);
            }
            None => {
                let purpose = Purpose::Locate(read, block);
                self.request(purpose, &Request::Locate { handle: *handle });
            }
        }
    }

    /// Notes that a remote object uses a block, so that its key stays known.
    pub(crate) fn use_block(&mut self, block: BlockKey) -> bool {
        let Some(known) = self.blocks.get_mut(&block) else { return false };
        known.users += 1;
        if let Some(since) = known.idle_since.take() {
            self.idle.remove(&since);
        }
        true
    }

    /// Ends a use.
    pub(crate) fn release_block(&mut self, block: BlockKey) {
        let next = self.next();
        if let Some(known) = self.blocks.get_mut(&block) {
            known.users = known.users.saturating_sub(1);
            if known.users == 0 && known.idle_since.is_none() {
                known.idle_since = Some(next);
                self.idle.insert(next, block);
            }
        }
        self.forget_idle();
    }

    /// Gives up the key of a block that was freed.
    fn forget_block(&mut self, block: BlockKey) {
        let Some(known) = self.blocks.remove(&block) else { return };
        if let Some(since) = known.idle_since {
            self.idle.remove(&since);
        }
        if known.located.is_some() {
            let BlockKey(slot, generation) = block;
            let message = Request::Release { slot, generation }.encode(self.number, 0);
            self.queued.push_back((message, false));
        }
    }

    /// Gives up the keys of blocks that were not used for longest, above the limit.
    fn forget_idle(&mut self) {
        while self.max_blocks > 0 && self.blocks.len() as u64 > self.max_blocks {
            let Some((_, block)) = self.idle.pop_first() else { return };
            self.forget_block(block);
        }
    }

    /// Asks for the parts of a read by messages, as far as there is room.
    fn ask_parts(&mut self, number: u64) {
        while self.unanswered + self.queued.len() < WINDOW {
            let Some(Work::Read(read)) = self.work.get_mut(&number) else { return };
            // A read of nothing asks once, whether the block is current.
            let is_asked = read.asked == read.length && (read.length > 0 || read.outstanding > 0);
            if is_asked || read.result.is_some() {
                return;
            }
            let part = (read.length - read.asked).min(MAX_SMALL);
            let (at, handle) = (read.asked, read.handle);
            let offset = (read.offset + at) as u64;
            read.asked += part;
            read.outstanding += 1;
            let request = Request::Read { handle, offset, length: part as u32 };
            self.request(Purpose::Part(number, at, part), &request);
        }
        self.unposted.push_back(number);
    }

    /// Posts the pieces of a read, or asks for its parts, as far as there is room.
    pub(super) fn pump(&mut self, number: u64) -> Result<()> {
        let Some(Work::Read(read)) = self.work.get_mut(&number) else { return Ok(()) };
        let Some(located) = read.located else {
            self.ask_parts(number);
            return Ok(());
        };
        while read.asked < read.length {
            let piece = (read.length - read.asked).min(self.piece);
            self.next += 1;
            let address = located.address.wrapping_add((read.offset + read.asked) as u64);
            let from = (located.key, address);
            let into = (read.asked, piece);
            if !self.endpoint.read(self.peer, from, &read.buffer, into, self.next)? {
                self.unposted.push_back(number);
                return Ok(());
            }
            self.operations.insert(self.next, Operation::Piece(number));
            read.asked += piece;
            read.outstanding += 1;
        }
        // All data has arrived: now generation and nonce, by one read.
        if read.outstanding == 0 && read.result.is_none() {
            let slot = match &read.slot {
                Some(slot) => Arc::clone(slot),
                None => self.pool.take(SLOT_SIZE)?,
            };
            // What an earlier read left in it is never taken for the slot.
            slot.copy_in(0, &[u8::MAX; SLOT_SIZE]);
            self.next += 1;
            let from = (located.slot_key, located.slot_address);
            read.slot = Some(Arc::clone(&slot));
            if self.endpoint.read(self.peer, from, &slot, (0, SLOT_SIZE), self.next)? {
                self.operations.insert(self.next, Operation::Slot(number));
                read.outstanding += 1;
            } else {
                self.unposted.push_back(number);
            }
        }
        Ok(())
    }

    /// A part of the data has arrived.
    pub(super) fn piece_arrived(&mut self, number: u64) {
        let Some(Work::Read(read)) = self.work.get_mut(&number) else { return };
        read.outstanding -= 1;
        read.last_progress = Instant::now();
        if read.outstanding == 0 && read.asked == read.length {
            self.unposted.push_back(number);
        }
    }

    /// Generation and nonce have arrived, after all data.
    pub(super) fn slot_arrived(&mut self, number: u64) {
        let Some(Work::Read(read)) = self.work.get_mut(&number) else { return };
        read.outstanding -= 1;
        let mut words = [0; SLOT_SIZE];
        if let Some(slot) = read.slot.take() {
            slot.copy_out(0, &mut words);
            self.pool.give_back(slot);
        }
        let (generation, nonce) = words.split_at(8);
        let now = u64::from_le_bytes(generation.try_into().unwrap_or_default());
        let is_current = now == read.handle.generation() && nonce == read.handle.nonce().as_bytes();
        read.result = Some(if is_current { Ok(()) } else { Err(Failure::Stale(now)) });
    }

    /// The reply to a part, which begins at an offset in the read and has a length, has arrived.
    pub(super) fn part_arrived(
        &mut self,
        number: u64,
        (at, length): (usize, usize),
        failure: Option<Failure>,
        reply: &Reply<'_>,
    ) {
        let Some(Work::Read(read)) = self.work.get_mut(&number) else { return };
        read.outstanding -= 1;
        read.last_progress = Instant::now();
        let failure = match (failure, reply) {
            (Some(failure), _) => Some(failure),
            (None, Reply::Data { data }) if data.len() == length => {
                read.buffer.copy_in(at, data);
                None
            }
            _ => Some(unexpected()),
        };
        match failure {
            Some(failure) => read.result = Some(Err(failure)),
            None if read.outstanding == 0 && read.asked == read.length => {
                read.result.get_or_insert(Ok(()));
            }
            None => {}
        }
    }

    /// The answer to a request for the key of a block has arrived. The read may have been given up.
    pub(super) fn located(
        &mut self,
        number: u64,
        block: BlockKey,
        failure: Option<Failure>,
        reply: &Reply<'_>,
    ) {
        let located = match (failure, reply) {
            (Some(failure), _) => Err(failure),
            (None, Reply::ByMessages) => Ok(None),
            (None, &Reply::Located { key, address, slot_key, slot_address }) => {
                Ok(Some(Located { key, address, slot_key, slot_address }))
            }
            _ => Err(unexpected()),
        };
        if let Ok(located) = located {
            let since = self.next();
            self.blocks.entry(block).or_insert_with(|| {
                self.idle.insert(since, block);
                KnownBlock { located, users: 0, idle_since: Some(since) }
            });
            if self.work.contains_key(&number) {
                self.use_block(block);
            }
            self.forget_idle();
        }
        let Some(Work::Read(read)) = self.work.get_mut(&number) else { return };
        read.last_progress = Instant::now();
        match located {
            Ok(located) => {
                (read.located, read.is_user) = (located, true);
                self.unposted.push_back(number);
            }
            Err(failure) => read.result = Some(Err(failure)),
        }
    }

    /// Returns the outcome of a read, if it has one: the buffer with the data in front.
    pub(crate) fn take_read(&mut self, number: u64) -> Option<Result<Arc<Buffer>, Failure>> {
        match self.work.get(&number) {
            Some(Work::Read(read)) if read.result.is_none() => return None,
            _ => {}
        }
        match self.work.remove(&number) {
            Some(Work::Read(read)) => {
                let read = *read;
                let block = BlockKey::of(&read.handle);
                if let Some(Err(Failure::Stale(_))) = &read.result {
                    self.forget_block(block);
                } else if read.is_user {
                    self.release_block(block);
                }
                read.result.map(|result| result.map(|()| read.buffer))
            }
            _ => Some(Err(Failure::Lost("the read is not known".to_owned()))),
        }
    }

    /// Returns when a read last made progress.
    pub(crate) fn last_progress(&self, number: u64) -> Option<Instant> {
        match self.work.get(&number) {
            Some(Work::Read(read)) => Some(read.last_progress),
            _ => None,
        }
    }

    /// Gives up a read. Its buffer is kept until its operations have ended.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(Work::Read(read)) = self.work.remove(&number)
            && read.is_user
        {
            self.release_block(BlockKey::of(&read.handle));
        }
    }
}
