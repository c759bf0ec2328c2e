//! Sending by a [`Mesh`]. A message is in the ring at once, offered, or waits for space in its lane,
//! behind earlier ones to the same process.

use std::collections::VecDeque;

use crate::buffer::Source;
use crate::queue::Context;
use crate::send::{SendRequest, Sending};
use crate::{Error, Result};

use super::{Completed, Label, Mesh, NO_COMPLETION, Process};

/// The most offered messages of which one call makes progress.
pub(super) const OFFERED: usize = 32;

/// A message that is being sent.
#[derive(Debug)]
pub(super) struct PendingSend {
    token: u64,
    // Before `_copy`, to which it may refer.
    request: SendRequest<'static>,
    /// The data, if the caller may reuse its memory.
    _copy: Option<Box<[u8]>>,
}

impl Label {
    #[inline]
    fn parts(self) -> (u64, Context) {
        match self.tag {
            Some(tag) => (tag, Context::Messages),
            None => (0, Context::Untagged),
        }
    }
}

impl Mesh {
    /// Begins to send a message. Returns whether it was sent: then there is no completion. If
    /// `is_acknowledged`, a message is sent when it has been received.
    ///
    /// # Errors
    /// [`Error::NotAccepted`] until the process has accepted the link: the caller makes progress and
    /// calls again. 30 s after the first call it is [`Error::TimedOut`]. As
    /// [`LinkBuilder::connect`](crate::LinkBuilder::connect); [`Error::PeerGone`],
    /// [`Error::Closed`], [`Error::Forked`], [`Error::System`].
    ///
    /// # Safety
    /// Until the completion, the memory of `source` can be read and is not written by this process.
    pub unsafe fn send(
        &mut self,
        to: Process,
        label: Label,
        source: Source<'static>,
        is_acknowledged: bool,
        token: u64,
    ) -> Result<bool> {
        let link = self.link_to(to)?;
        if !is_acknowledged && self.send_fast(link, label, &source) {
            return Ok(true);
        }
        let (tag, context) = label.parts();
        let sending = Sending::new(tag, context, source, false).of_mesh(label.immediate, is_acknowledged);
        self.send_slow(link, sending, token, None)
    }

    /// Sends a message whose memory may be reused at once. There is no completion.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    pub fn inject(&mut self, to: Process, label: Label, bytes: &[u8]) -> Result<()> {
        let link = self.link_to(to)?;
        if self.send_fast(link, label, &Source::from(bytes)) {
            return Ok(());
        }
        let copy: Box<[u8]> = Box::from(bytes);
        // SAFETY: the copy is dropped after the request, and not written.
        let source = unsafe { Source::from_raw(&[(copy.as_ptr().cast_mut(), copy.len())]) };
        let (tag, context) = label.parts();
        let sending = Sending::new(tag, context, source, false).of_mesh(label.immediate, false);
        self.send_slow(link, sending, NO_COMPLETION, Some(copy)).map(drop)
    }

    /// Tells a process that its memory was written, by a completion there.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    pub fn tell_written(&mut self, process: Process, immediate: u64, length: u64) -> Result<()> {
        let link = self.link_to(process)?;
        let sending = Sending::new(length, Context::Transfers, Source::from(&[]), false);
        let sending = sending.of_mesh(Some(immediate), false);
        self.send_slow(link, sending, NO_COMPLETION, None).map(drop)
    }

    /// Copies a short message into the ring. Returns `false` on any obstacle.
    #[inline]
    fn send_fast(&mut self, link: usize, label: Label, source: &Source<'_>) -> bool {
        if source.len() > self.inbox.inline_max || !self.links[link].waiting.is_empty() {
            return false;
        }
        let peer = self.inbox.peer(link);
        peer.is_fresh() && peer.send_fast(label.parts(), label.immediate, &source.0)
    }

    #[cold]
    fn send_slow(
        &mut self,
        link: usize,
        sending: Sending<'static>,
        token: u64,
        copy: Option<Box<[u8]>>,
    ) -> Result<bool> {
        self.check_process()?;
        self.inbox.peer(link).check_open()?;
        let mut request = self.inbox.request(link, sending);
        let is_next = self.links[link].waiting.is_empty();
        if is_next && self.inbox.poll_send(link, &mut request.sending)?.is_some() {
            return Ok(true);
        }
        let is_offered = is_next && !request.sending.is_new();
        let send = PendingSend { token, request, _copy: copy };
        if is_offered {
            self.sends.push_back(send);
        } else {
            self.links[link].waiting.push_back(send);
            self.waiting += 1;
        }
        Ok(false)
    }

    /// Continues to send. Returns whether there was anything to do.
    pub(super) fn progress_sends(&mut self) -> bool {
        let mut is_any = false;
        for link in 0..self.links.len() {
            while let Some(mut send) = self.links[link].waiting.pop_front() {
                let polled = self.inbox.poll_send(link, &mut send.request.sending);
                match polled {
                    Ok(None) if send.request.sending.is_new() => {
                        self.links[link].waiting.push_front(send);
                        break;
                    }
                    Ok(None) => self.sends.push_back(send),
                    ended => self.end_send(&send, ended),
                }
                self.waiting -= 1;
                is_any = true;
            }
        }
        for _ in 0..self.sends.len().min(OFFERED) {
            let Some(mut send) = self.sends.pop_front() else { break };
            match self.inbox.poll_send(send.request.peer, &mut send.request.sending) {
                Ok(None) => self.sends.push_back(send),
                ended => {
                    is_any = true;
                    self.end_send(&send, ended);
                }
            }
        }
        is_any
    }

    fn end_send(&mut self, send: &PendingSend, ended: Result<Option<()>>) {
        self.complete(send.token, ended.map(|_| Completed::Sent), None);
    }

    /// Ends all messages to a process that has ended.
    pub(super) fn end_sends(&mut self, links: &[usize], error: &Error) {
        let is_ended = |send: &PendingSend| links.contains(&send.request.peer);
        let (mut ended, others): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.sends).into_iter().partition(is_ended);
        self.sends = others;
        for link in links {
            self.waiting -= self.links[*link].waiting.len();
            ended.append(&mut self.links[*link].waiting);
        }
        for send in ended {
            self.end_send(&send, Err(error.clone()));
        }
    }
}
