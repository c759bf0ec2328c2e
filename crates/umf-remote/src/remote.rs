//! [`Remote`]: a block of a process on this or another machine.

use core::fmt;
use core::ops::Deref;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use umf_ipc::{Handle, Importer, Mapping};

use crate::client::{Connection, Landed, ReadState};
use crate::fabric::{Buffer, BufferPool};
use crate::protocol::MAX_PULL;
use crate::{Error, Result};

/// Reads and writes of one call that are in flight together.
const IN_FLIGHT: usize = 16;

/// A block of another process. On this machine it is mapped; on another one it is read over the
/// fabric.
///
/// **A read is never stale**: its data is returned only if the block was not freed before all of it
/// had been read. The producer may write the block while it is read, as with every shared memory.
///
/// All methods may be called from several threads at once. A call ends within
/// [`RemoteSettings::timeout`](crate::RemoteSettings::timeout) of its last progress by the
/// producer.
pub struct Remote {
    handle: Handle,
    place: Place,
}

enum Place {
    Here(Mapping<'static>),
    There {
        connection: Arc<Connection>,
        /// The session in which this object counts as a user of its block, 0 for none.
        used_in: AtomicU64,
    },
}

impl Remote {
    pub(crate) fn local(importer: &'static Importer, handle: &Handle) -> Result<Self> {
        let access =
            if handle.is_read_only() { umf_ipc::Access::ReadOnly } else { umf_ipc::Access::ReadWrite };
        let mapping = importer.open_bytes(handle.as_bytes(), access)?;
        Ok(Self { handle: *handle, place: Place::Here(mapping) })
    }

    pub(crate) const fn over_fabric(connection: Arc<Connection>, handle: Handle) -> Self {
        Self { handle, place: Place::There { connection, used_in: AtomicU64::new(0) } }
    }

    /// Returns the handle.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the size of the block in bytes, never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        usize::try_from(self.handle.requested()).unwrap_or(usize::MAX)
    }

    /// Returns the mapping, if the block is of this machine.
    #[must_use]
    pub const fn mapping(&self) -> Option<&Mapping<'static>> {
        match &self.place {
            Place::Here(mapping) => Some(mapping),
            Place::There { .. } => None,
        }
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        let size = self.len();
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfBounds { offset, length, size }),
        }
    }

    /// Returns a copy of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::Stale`] if the block was freed before the data was read;
    /// [`Error::OutOfBounds`]; [`Error::ProducerLost`], [`Error::ProducerReplaced`],
    /// [`Error::TimedOut`]; [`Error::Refused`], [`Error::KeyRefused`]; [`Error::NoLibrary`] and
    /// [`Error::NoProvider`] at the first read of a producer; [`Error::Ipc`] on this machine.
    pub fn read(&self, offset: usize, length: usize) -> Result<Data> {
        self.start_read(offset, length)?.wait()
    }

    /// Copies `into.len()` bytes at `offset`.
    ///
    /// # Errors
    /// As [`Remote::read`]. Then the contents of `into` are unspecified.
    pub fn read_into(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        match &self.place {
            Place::Here(mapping) => Ok(mapping.read_current(offset, into)?),
            // The fabric writes into buffers of this crate: after an error, data may still arrive.
            Place::There { .. } => {
                let mut parts: VecDeque<(PendingRead<'_>, &mut [u8])> = VecDeque::new();
                let mut offset = offset;
                for part in into.chunks_mut(MAX_PULL) {
                    if parts.len() == IN_FLIGHT
                        && let Some((read, part)) = parts.pop_front()
                    {
                        part.copy_from_slice(&read.wait()?);
                    }
                    let length = part.len();
                    parts.push_back((self.start_read(offset, length)?, part));
                    offset += length;
                }
                for (read, part) in parts {
                    part.copy_from_slice(&read.wait()?);
                }
                Ok(())
            }
        }
    }

    /// Returns copies of several ranges (offset and length), which are read at the same time.
    ///
    /// # Errors
    /// As [`Remote::read`], of the first range that fails.
    pub fn read_many(&self, ranges: &[(usize, usize)]) -> Result<Vec<Data>> {
        let mut results = Vec::with_capacity(ranges.len());
        let mut pending = VecDeque::with_capacity(IN_FLIGHT);
        for &(offset, length) in ranges {
            if pending.len() == IN_FLIGHT
                && let Some(first) = pending.pop_front()
            {
                results.push(PendingRead::wait(first)?);
            }
            pending.push_back(self.start_read(offset, length)?);
        }
        for read in pending {
            results.push(read.wait()?);
        }
        Ok(results)
    }

    /// Begins to read `length` bytes at `offset`. If there is no connection to the producer, makes
    /// one first, and waits for that.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], and those of connecting: see [`Remote::read`].
    pub fn start_read(&self, offset: usize, length: usize) -> Result<PendingRead<'_>> {
        self.check(offset, length)?;
        let state = match &self.place {
            Place::Here(mapping) => {
                let mut data = vec![0; length];
                mapping.read_current(offset, &mut data)?;
                Pending::Here(Some(data))
            }
            Place::There { connection, .. } => {
                let mut read = ReadState::new(self.handle, offset, length, connection.settings.timeout);
                connection.start(&mut read)?;
                Pending::There(connection, Some(read))
            }
        };
        Ok(PendingRead { remote: self, state })
    }

    /// Returns whether the block was not freed since the handle was made. Over the fabric this
    /// takes a round trip.
    ///
    /// # Errors
    /// As [`Remote::read`], without [`Error::Stale`].
    pub fn is_current(&self) -> Result<bool> {
        match &self.place {
            Place::Here(mapping) => Ok(mapping.is_current()),
            Place::There { .. } => match self.read(0, 0) {
                Ok(_) => Ok(true),
                Err(Error::Stale { .. }) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Does what the first read of a block would do beside reading: connects, and asks for the key
    /// of the memory. Does nothing on this machine.
    ///
    /// # Errors
    /// As [`Remote::read`].
    pub fn prefetch(&self) -> Result<()> {
        match &self.place {
            Place::Here(_) => Ok(()),
            Place::There { .. } => self.read(0, 0).map(drop),
        }
    }

    /// Asks for a grant to write, for `time` or the longest time of the producer, whichever is
    /// shorter. While it lasts, the block's memory is not used again, even if the block is freed.
    ///
    /// # Errors
    /// [`Error::NotGranted`] if the producer gives no grants; as [`Remote::read`];
    /// [`Error::Ipc`] with `ReadOnly` on this machine.
    pub fn grant(&self, time: Duration) -> Result<Grant<'_>> {
        match &self.place {
            Place::Here(mapping) if mapping.is_read_only() => Err(umf_ipc::Error::ReadOnly.into()),
            Place::Here(_) => {
                let until = Instant::now().checked_add(time);
                let until = until.ok_or(umf_ipc::Error::Memory(umf_core::Error::InvalidArgument {
                    what: "the time of a grant",
                    why: "is too long",
                }))?;
                Ok(Grant { remote: self, there: None, until })
            }
            Place::There { connection, .. } => {
                let asked = Instant::now();
                let (grant, session, time) = connection.grant(&self.handle, time)?;
                Ok(Grant { remote: self, there: Some((connection, grant, session)), until: asked + time })
            }
        }
    }

    /// Notes in the current session that this object uses its block, so that its key stays known.
    fn note_use(&self) {
        if let Place::There { connection, used_in } = &self.place
            && !connection.has_session(used_in.load(Ordering::Relaxed))
            && let Some(epoch) = connection.use_block(&self.handle)
            && used_in.swap(epoch, Ordering::Relaxed) == epoch
        {
            // Another thread has noted it meanwhile.
            connection.release_block(epoch, &self.handle);
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Place::There { connection, used_in } = &self.place {
            match used_in.load(Ordering::Relaxed) {
                0 => {}
                epoch => connection.release_block(epoch, &self.handle),
            }
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Here(_) => "this machine".to_owned(),
            Place::There { connection, .. } => connection.address(),
        };
        f.debug_struct("Remote").field("handle", &self.handle).field("place", &place).finish()
    }
}

/// A read in progress. Dropping it gives the read up.
pub struct PendingRead<'r> {
    remote: &'r Remote,
    state: Pending<'r>,
}

#[expect(clippy::large_enum_variant, reason = "most reads are of the large kind")]
enum Pending<'r> {
    Here(Option<Vec<u8>>),
    There(&'r Arc<Connection>, Option<ReadState>),
}

impl PendingRead<'_> {
    /// Returns the data if the read has ended, and `None` if it has not, or if its data was
    /// returned before. Makes progress.
    ///
    /// # Errors
    /// As [`Remote::read`].
    pub fn poll(&mut self) -> Result<Option<Data>> {
        self.take(Connection::poll_read)
    }

    /// Waits for the data, and not longer than `time`. Returns `None` if the read has not ended, or
    /// if its data was returned before. If the connection was lost and has to be made again, that
    /// may take up to [`RemoteSettings::timeout`](crate::RemoteSettings::timeout) more.
    ///
    /// # Errors
    /// As [`Remote::read`].
    pub fn wait_for(&mut self, time: Duration) -> Result<Option<Data>> {
        // A time beyond the range of the clock is no limit.
        let pause = Instant::now().checked_add(time);
        self.take(|connection, read| connection.wait_read(read, pause))
    }

    /// Waits for the data. Returns none if [`PendingRead::poll`] returned it before.
    ///
    /// # Errors
    /// As [`Remote::read`].
    pub fn wait(mut self) -> Result<Data> {
        let data = self.take(|connection, read| connection.wait_read(read, None))?;
        Ok(data.unwrap_or_else(|| Data::owned(Vec::new())))
    }

    /// Returns the data that `land` returns. After that, and after an error, the read has ended.
    fn take(
        &mut self,
        land: impl FnOnce(&Connection, &mut ReadState) -> Result<Option<Landed>>,
    ) -> Result<Option<Data>> {
        let (landed, length) = match &mut self.state {
            Pending::Here(data) => return Ok(data.take().map(Data::owned)),
            Pending::There(connection, state) => {
                let Some(read) = state.as_mut() else { return Ok(None) };
                let (landed, length) = (land(connection, read), read.length);
                if !matches!(landed, Ok(None)) {
                    *state = None;
                }
                (landed?, length)
            }
        };
        let Some((buffer, pool)) = landed else { return Ok(None) };
        self.remote.note_use();
        Ok(Some(Data { content: Content::Landed(Some(buffer), pool), length }))
    }
}

impl Drop for PendingRead<'_> {
    fn drop(&mut self) {
        if let Pending::There(connection, Some(read)) = &self.state {
            connection.forget(read);
        }
    }
}

impl fmt::Debug for PendingRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRead").field("remote", self.remote).finish_non_exhaustive()
    }
}

/// Bytes that were read: a copy, which no other process writes.
pub struct Data {
    content: Content,
    length: usize,
}

enum Content {
    Owned(Vec<u8>),
    /// `None` only while it is dropped.
    Landed(Option<Arc<Buffer>>, Arc<BufferPool>),
}

impl Data {
    fn owned(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { content: Content::Owned(bytes), length }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.content {
            Content::Owned(bytes) => bytes,
            Content::Landed(Some(buffer), _) => buffer.landed(self.length),
            Content::Landed(None, _) => &[],
        }
    }
}

impl AsRef<[u8]> for Data {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Data").field(&self.length).finish()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Content::Landed(buffer, pool) = &mut self.content
            && let Some(buffer) = buffer.take()
        {
            pool.give_back(buffer);
        }
    }
}

/// A permission to write a block, for a time. Dropping it ends the grant.
///
/// The producer reads the data from this process and writes it itself, so that nothing of the
/// fabric ever writes the producer's memory. A write that has returned is visible to all reads of
/// the block after that.
pub struct Grant<'r> {
    remote: &'r Remote,
    there: Option<(&'r Arc<Connection>, u64, u64)>,
    until: Instant,
}

impl Grant<'_> {
    /// Returns the time that is left.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// [`Error::NotGranted`] if the grant has ended; [`Error::Stale`] if the block was freed;
    /// [`Error::OutOfBounds`]; as [`Remote::read`]. Then part of the data may have been written.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.remote.check(offset, data.len())?;
        let Some((connection, grant, session)) = self.there else {
            if self.time_left().is_zero() {
                let max = Duration::ZERO;
                return Err(Error::NotGranted { address: "this machine".to_owned(), max });
            }
            return match &self.remote.place {
                Place::Here(mapping) => {
                    Ok(mapping.with(|_| ()).and_then(|()| mapping.write(offset, data))?)
                }
                Place::There { .. } => Err(Error::NotServing),
            };
        };
        let mut pending = VecDeque::new();
        let mut offset = offset;
        let mut result = Ok(());
        for part in data.chunks(MAX_PULL) {
            if pending.len() == 4
                && let Some(first) = pending.pop_front()
            {
                result = connection.wait_write(first, &self.remote.handle);
            }
            let started = result.and_then(|()| connection.start_write(session, grant, offset, part));
            result = started.map(|part| pending.push_back(part));
            if result.is_err() {
                break;
            }
            offset += part.len();
        }
        // Also after an error: the producer reads their data out of this process.
        for part in pending {
            result = result.and(connection.wait_write(part, &self.remote.handle));
        }
        result
    }

    /// Ends the grant, and waits until the producer knows.
    ///
    /// # Errors
    /// As [`Remote::read`]; [`Error::NotGranted`] if it had ended.
    pub fn end(mut self) -> Result<()> {
        match self.there.take() {
            Some((connection, grant, session)) => connection.end_grant(session, grant, &self.remote.handle),
            None => Ok(()),
        }
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if let Some((connection, grant, session)) = self.there.take() {
            // If the producer does not answer, the grant ends by time.
            let _ = connection.end_grant(session, grant, &self.remote.handle);
        }
    }
}

impl fmt::Debug for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("remote", self.remote).field("left", &self.time_left()).finish()
    }
}
