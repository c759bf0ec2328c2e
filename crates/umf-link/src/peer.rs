//! [`Peer`]: what an inbox knows of one peer.

use std::sync::Arc;

use crate::channel::Channel;
use crate::handles::KnownHandles;
use crate::outgoing::Outgoing;
use crate::requests::Requests;
use crate::ring::{Reader, RecordHeader, Writer};
use crate::wait::FRESH;
use crate::{Error, LinkStatistics, Result, sys};

/// The state of one peer, in private memory.
#[derive(Debug)]
pub(crate) struct Peer {
    pub channel: Arc<Channel>,
    /// The number that receives match: the index of the peer, or in a mesh that of its process.
    pub source: usize,
    pub writer: Writer,
    pub reader: Reader,
    pub outgoing: Outgoing,
    pub handles: KnownHandles,
    pub requests: Requests,
    /// The number of the latest attempt to fetch a message. Words of other attempts are ignored.
    epoch: u16,
    /// The message that is fetched through the bounce area of the peer's lane.
    pub bouncing: Option<u64>,
    pub statistics: LinkStatistics,
    /// The time of the latest liveness check, in milliseconds.
    checked: u64,
    /// Messages in the queue, by the slot of their offer.
    pub offers: Vec<u64>,
    /// Bytes of messages that arrived although the peer was asked to announce only.
    pub overrun: usize,
    /// The error after which the lane is not read any more.
    pub read_error: Option<Error>,
}

impl Peer {
    pub(crate) fn new(channel: Arc<Channel>, source: usize) -> Self {
        Self {
            channel,
            source,
            writer: Writer::new(),
            reader: Reader::new(),
            outgoing: Outgoing::new(),
            handles: KnownHandles::default(),
            requests: Requests::new(),
            epoch: 0,
            bouncing: None,
            statistics: LinkStatistics::default(),
            checked: 0,
            offers: Vec::new(),
            overrun: 0,
            read_error: None,
        }
    }

    /// Returns a number for the next attempt, never 0.
    pub(crate) const fn next_epoch(&mut self) -> u16 {
        self.epoch = match self.epoch.wrapping_add(1) {
            0 => 1,
            epoch => epoch,
        };
        self.epoch
    }

    /// Fails if the peer is gone or has closed the link. Asks the kernel if the latest answer is
    /// older than [`FRESH`].
    #[inline]
    pub(crate) fn check(&mut self) -> Result<()> {
        self.channel.check_known()?;
        if sys::coarse_milliseconds().wrapping_sub(self.checked) > FRESH {
            return self.check_alive();
        }
        Ok(())
    }

    /// Whether the kernel has recently reported the peer as alive.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        let age = sys::coarse_milliseconds().wrapping_sub(self.checked);
        age <= FRESH && self.channel.is_known_alive() && !self.channel.has_closed()
    }

    /// Stops reading the peer's lane. The next check returns the error.
    pub(crate) fn set_read_error(&mut self, error: Error) {
        self.read_error = Some(error);
        self.checked = 0;
    }

    /// Returns whether [`Peer::peek`] has something to return.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        self.reader.has_record(&self.channel) || self.read_error.is_some()
    }

    /// Returns the next record of its lane, if one has arrived.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<RecordHeader>> {
        if let Some(error) = &self.read_error {
            return Err(error.clone());
        }
        self.reader.peek(&self.channel)
    }

    #[cold]
    fn check_alive(&mut self) -> Result<()> {
        if let Some(error) = &self.read_error {
            return Err(error.clone());
        }
        self.checked = sys::coarse_milliseconds();
        self.channel.check_alive()
    }
}
