//! [`Endpoint`], at which a process accepts links, and [`LinkBuilder`], which makes endpoints,
//! links and communicators.
//!
//! In the handshake each process sends the descriptors of its lane, catalog and bell over a socket.
//! The socket stays open: the kernel closes it when its process ends.

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use umf_ipc::Importer;
use umf_ipc::fd_socket::{ClientProof, Deadline};
use umf_os::process::random;
use umf_sync::{failpoint, fork};

use crate::channel::{Channel, InboxFds, InboxShared, PeerFiles, PeerProcess};
use crate::contact::{self, Listener};
use crate::settings::check_interrupt;
use crate::shared_files::{Bell, OwnLane, PeerCatalog, PeerLane};
use crate::sys::CloseOnFork;
use crate::{Error, Link, LinkAddress, LinkSettings, Result, sys};

/// Bytes of a packet.
pub(crate) const PACKET_SIZE: usize = 64;
const MAGIC: [u8; 4] = *b"UMFK";
const VERSION: u16 = 3;
/// The time that [`Endpoint::serve`] waits after an error, such as a lack of descriptors.
const ERROR_DELAY: Duration = Duration::from_millis(20);

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The connecting process sends its files.
    Hello = 1,
    /// The acceptor accepts and sends its files.
    Welcome = 2,
    /// The acceptor refuses. The words are the reason.
    Refused = 3,
    /// The connecting process has established the link. Sent by ranks only.
    Agreed = 4,
}

/// A packet of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The nonce of both lanes.
    pub lane: u128,
    /// The nonce of the sender's catalog.
    pub catalog: u128,
    /// The address at which the sender has mapped its lane.
    pub base: u64,
    /// In a hello of a rank: 1, its number, the size of its job, and the number of its earlier
    /// links with the other rank. In a refusal: 1 for "connect later", or 2 and the size of the
    /// job. Otherwise 0.
    pub words: [u32; 4],
}

impl Packet {
    pub(crate) fn encode(&self, kind: Kind) -> [u8; PACKET_SIZE] {
        let mut bytes = [0; PACKET_SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.lane.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.catalog.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.base.to_le_bytes());
        for (to, word) in bytes[48..].chunks_exact_mut(4).zip(self.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a packet of a kind; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8], kind: Kind) -> Option<Self> {
        let bytes: &[u8; PACKET_SIZE] = bytes.try_into().ok()?;
        let is_valid = bytes[0..4] == MAGIC
            && bytes[4..6] == VERSION.to_le_bytes()
            && bytes[6..8] == (kind as u16).to_le_bytes();
        let nonce = |at: usize| u128::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let word =
            |number: usize| u32::from_le_bytes(core::array::from_fn(|byte| bytes[48 + 4 * number + byte]));
        let base = u64::from_le_bytes(core::array::from_fn(|byte| bytes[40 + byte]));
        let words = core::array::from_fn(word);
        is_valid.then(|| Self { lane: nonce(8), catalog: nonce(24), base, words })
    }
}

/// A builder of endpoints, links and communicators. It has their settings, and the importer that
/// opens memory of peers.
///
/// # Examples
/// ```
/// # fn main() -> umf_link::Result<()> {
/// use umf_link::LinkBuilder;
/// let endpoint = LinkBuilder::new().bind()?;
/// let address = endpoint.address(); // 64 plain bytes: into argv, MPI, a file
/// // In another process (here, in another thread):
/// let peer = std::thread::spawn(move || -> umf_link::Result<()> {
///     let mut link = LinkBuilder::new().connect(&address, None)?;
///     link.send(7, b"hello")
/// });
/// let mut link = endpoint.accept(None)?;
/// let mut text = [0; 5];
/// link.recv(7, &mut text)?;
/// assert_eq!(&text, b"hello");
/// # peer.join().expect("it does not panic")
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct LinkBuilder {
    pub(crate) settings: LinkSettings,
    pub(crate) importer: Option<&'static Importer>,
}

impl LinkBuilder {
    /// Makes a builder with default settings and without an importer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets all settings at once.
    #[must_use]
    pub fn settings(mut self, settings: LinkSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the importer that opens memory of peers. Without an importer, no memory is mapped and
    /// no message can be received as a view.
    #[must_use]
    pub const fn importer(mut self, importer: &'static Importer) -> Self {
        self.importer = Some(importer);
        self
    }

    /// Makes an endpoint with a random name. Other processes need its address.
    ///
    /// # Errors
    /// [`Error::System`]: no descriptors are left.
    pub fn bind(&self) -> Result<Endpoint> {
        Endpoint::listen(self.clone(), LinkAddress::unique(&self.settings)?)
    }

    /// Returns the address of the endpoint that has this name, if [`LinkSettings::directory`] and
    /// [`LinkSettings::allow`] are the same in the process that made it. A name has 1 to 64
    /// letters, digits and `._:/+=@-`.
    ///
    /// # Errors
    /// [`Error::BadName`].
    pub fn address_of(&self, name: &str) -> Result<LinkAddress> {
        LinkAddress::of_name_by(&self.settings, name)
    }

    /// Returns a new address, at which this process can make a [`crate::mesh::Mesh`] later.
    ///
    /// # Errors
    /// [`Error::System`]: no random numbers are available.
    pub fn unique_address(&self) -> Result<LinkAddress> {
        LinkAddress::unique(&self.settings)
    }

    /// Makes an endpoint with a name, by which other processes find it
    /// ([`LinkBuilder::address_of`]).
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::NameTaken`]; as [`LinkBuilder::bind`].
    pub fn named(&self, name: &str) -> Result<Endpoint> {
        let listened = Endpoint::listen(self.clone(), self.address_of(name)?);
        listened.map_err(|error| match error {
            Error::NameTaken { .. } => Error::NameTaken { name: name.to_owned() },
            error => error,
        })
    }

    /// Connects to an endpoint. `None` waits without a timeout.
    ///
    /// # Errors
    /// [`Error::OtherMachine`], [`Error::OtherPlace`], [`Error::NotListening`],
    /// [`Error::OtherUser`], [`Error::NotPermitted`], [`Error::NotProven`], [`Error::Directory`];
    /// [`Error::TimedOut`] if the connection is not accepted; [`Error::System`]: no descriptors or
    /// no shared memory are left. Nothing stays open after an error.
    pub fn connect(&self, address: &LinkAddress, timeout: Option<Duration>) -> Result<Link> {
        let (shared, fds) = InboxShared::create(self.settings.clone(), self.importer, None)?;
        match connect(&shared, &fds, address, timeout, [0; 4])? {
            Ok(channel) => Ok(Link::new(channel)),
            Err(_) => Err(not_an_endpoint(address.pid().cast_signed())),
        }
    }
}

fn not_an_endpoint(pid: i32) -> Error {
    Error::Misbehaved { pid, what: "its answer is not that of an endpoint" }
}

fn timed_out(what: &'static str, timeout: Option<Duration>) -> Error {
    let milliseconds = timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    Error::TimedOut { what, milliseconds }
}

/// Connects to an endpoint. `words` identify the rank that connects, or are 0. The inner error has
/// the words of a refusal.
pub(crate) fn connect(
    shared: &Arc<InboxShared>,
    fds: &InboxFds,
    address: &LinkAddress,
    timeout: Option<Duration>,
    words: [u32; 4],
) -> Result<Result<Arc<Channel>, [u32; 4]>> {
    let deadline = Deadline::after(timeout.unwrap_or(Duration::MAX));
    let connected = Connecting::begin(shared, address, deadline, words).and_then(|mut connecting| {
        let answer = connecting.answer(shared, fds, deadline)?;
        connecting.finish(shared, answer)
    });
    connected.map_err(|error| match error {
        Error::TimedOut { what, .. } => timed_out(what, timeout),
        error => error,
    })
}

/// A packet with descriptors.
type Answer = (Vec<u8>, Vec<OwnedFd>);

/// A connection to an endpoint that has still to answer.
#[derive(Debug)]
pub(crate) struct Connecting {
    address: LinkAddress,
    socket: CloseOnFork,
    pid: i32,
    words: [u32; 4],
    /// What the endpoint has to prove before this process sends its files.
    proof: Option<ClientProof>,
    /// The lane that this process has sent.
    lane: Option<OwnLane>,
}

impl Connecting {
    /// Connects. The other process may take long to accept.
    pub(crate) fn begin(
        shared: &InboxShared,
        address: &LinkAddress,
        deadline: Deadline,
        words: [u32; 4],
    ) -> Result<Self> {
        if !address.is_of_this_boot() {
            return Err(Error::OtherMachine);
        }
        let failed = |errno| connect_failed(shared, address, errno);
        let (socket, pid, proof) = contact::connect(address, &shared.settings, deadline, &failed)?;
        let socket = CloseOnFork::new(socket).map_err(Error::system("fstat of a socket"))?;
        Ok(Self { address: *address, socket, pid, words, proof, lane: None })
    }

    /// Waits for the answer. After [`Error::TimedOut`] it can be called again.
    pub(crate) fn answer(
        &mut self,
        shared: &InboxShared,
        fds: &InboxFds,
        deadline: Deadline,
    ) -> Result<Answer> {
        let failed = |errno| connect_failed(shared, &self.address, errno);
        if self.proof.is_some() {
            let (packet, received) = self.receive(shared, deadline)?;
            let own = self.proof.take().filter(|_| received.is_empty());
            let is_proven = own.map_or(Ok(false), |own| contact::prove(self.socket.as_fd(), own, &packet));
            if !is_proven.map_err(failed)? {
                return Err(Error::NotProven { name: self.address.socket() });
            }
        }
        if self.lane.is_none() {
            let nonce = u128::from_le_bytes(random().map_err(Error::system("getrandom"))?);
            let (lane, fd) = create_lane(nonce)?;
            failpoint!("link.lane_made");
            let hello = (Kind::Hello, self.words);
            send_files(self.socket.as_fd(), &lane, &fd, (shared, fds), hello).map_err(failed)?;
            failpoint!("link.proposed");
            self.lane = Some(lane);
        }
        self.receive(shared, deadline)
    }

    /// Receives a packet that is no refusal by a rule.
    fn receive(&self, shared: &InboxShared, deadline: Deadline) -> Result<Answer> {
        let mut bytes = [0; PACKET_SIZE + 1];
        let (length, fds) = sys::receive(&self.socket, &mut bytes, deadline, shared.settings.interrupt)
            .map_err(|errno| connect_failed(shared, &self.address, errno))?;
        match contact::refusing_rule(&bytes[..length]) {
            Some(rule) => Err(Error::NotPermitted { pid: self.pid, rule }),
            None => Ok((bytes[..length].to_vec(), fds)),
        }
    }

    /// Makes the channel. The inner error has the words of a refusal.
    pub(crate) fn finish(
        self,
        shared: &Arc<InboxShared>,
        (packet, fds): Answer,
    ) -> Result<Result<Arc<Channel>, [u32; 4]>> {
        let Self { address, socket, pid, words, lane, .. } = self;
        if let Some(refused) = Packet::decode(&packet, Kind::Refused) {
            return Ok(Err(refused.words));
        }
        let wrong = || not_an_endpoint(pid);
        let lane = lane.ok_or_else(wrong)?;
        let nonce = lane.nonce();
        let welcome = Packet::decode(&packet, Kind::Welcome).filter(|packet| packet.lane == nonce);
        let welcome = welcome.ok_or_else(wrong)?;
        let files = map_peer_files(&fds, &welcome)?.ok_or_else(wrong)?;
        let process = PeerProcess::new(socket.into_inner(), pid)?;
        let channel = Channel::new(shared, lane, files, (process, welcome.base))?;
        if words != [0; 4] {
            let agreed = Packet { lane: nonce, catalog: 0, base: 0, words: [0; 4] }.encode(Kind::Agreed);
            sys::send(channel.socket(), &agreed, &[])
                .map_err(|errno| connect_failed(shared, &address, errno))?;
        }
        Ok(Ok(channel))
    }
}

/// Returns the error of a connection.
fn connect_failed(shared: &InboxShared, address: &LinkAddress, errno: Errno) -> Error {
    match errno {
        Errno::TIMEDOUT => timed_out("accepting the connection", None),
        Errno::INTR => Error::Interrupted,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNREFUSED | Errno::NOENT => Error::NotListening {
            name: address.socket(),
            pid: address.pid(),
            directory: shared.settings.directory.clone(),
        },
        errno => Error::system("connect")(errno),
    }
}

fn create_lane(nonce: u128) -> Result<(OwnLane, OwnedFd)> {
    OwnLane::create(nonce).map_err(Error::system("creating the shared memory of a link"))
}

/// Sends a packet with the descriptors of this process's lane, catalog and bell.
fn send_files(
    socket: BorrowedFd<'_>,
    lane: &OwnLane,
    fd: &OwnedFd,
    (shared, fds): (&InboxShared, &InboxFds),
    (kind, words): (Kind, [u32; 4]),
) -> sys::Result<()> {
    let packet = Packet { lane: lane.nonce(), catalog: shared.catalog.nonce(), base: lane.base(), words };
    sys::send(socket, &packet.encode(kind), &[fd.as_fd(), fds.catalog.as_fd(), fds.bell.as_fd()])
}

/// Maps the files that the peer sent with a packet; `None` if they are not a lane, a catalog and a
/// bell.
fn map_peer_files(fds: &[OwnedFd], packet: &Packet) -> Result<Option<PeerFiles>> {
    let [lane, catalog, bell] = fds else { return Ok(None) };
    let failed = Error::system("mapping the shared memory of a link");
    let lane = PeerLane::adopt(lane, packet.lane).map_err(&failed)?;
    let catalog = PeerCatalog::adopt(catalog, packet.catalog).map_err(&failed)?;
    let bell = Bell::adopt(bell).map_err(failed)?;
    let nonce = packet.catalog;
    let files = lane.zip(catalog).zip(bell);
    Ok(files.map(|((lane, catalog), bell)| PeerFiles { lane, catalog, bell, nonce }))
}

/// A connected process to which the answer is still to be sent.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    pub pid: i32,
    pub hello: Packet,
    socket: OwnedFd,
    fds: Vec<OwnedFd>,
}

impl PendingConnection {
    /// Accepts the connection. Returns `None` if the process is gone or sent the wrong files.
    pub(crate) fn welcome(self, shared: &Arc<InboxShared>, fds: &InboxFds) -> Result<Option<Arc<Channel>>> {
        let Self { pid, hello, socket, fds: received } = self;
        let Some(files) = map_peer_files(&received, &hello)? else {
            tracing::warn!(pid, "a process that connected sent the wrong files");
            return Ok(None);
        };
        let (lane, fd) = create_lane(hello.lane)?;
        // Before the answer: an error afterwards would end a link that the peer has established.
        let channel = Channel::new(shared, lane, files, (PeerProcess::new(socket, pid)?, hello.base))?;
        failpoint!("link.answering");
        if send_files(channel.socket(), &channel.own_lane, &fd, (shared, fds), (Kind::Welcome, [0; 4]))
            .is_err()
        {
            tracing::debug!(pid, "a process connected and left");
            return Ok(None);
        }
        failpoint!("link.welcomed");
        Ok(Some(channel))
    }

    /// Refuses the connection. `words` are the reason.
    pub(crate) fn refuse(self, words: [u32; 4]) {
        let packet = Packet { lane: self.hello.lane, catalog: 0, base: 0, words }.encode(Kind::Refused);
        // An error means that the process is gone.
        let _ = sys::send(self.socket.as_fd(), &packet, &[]);
    }
}

/// Waits for the [`Kind::Agreed`] packet of a rank. Returns whether it arrived.
pub(crate) fn has_agreed(channel: &Channel) -> bool {
    let (mut bytes, deadline) = ([0; PACKET_SIZE], Deadline::after(channel.settings().handshake));
    let agreed = sys::receive(channel.socket(), &mut bytes, deadline, None);
    let packet = agreed.ok().and_then(|(length, _)| Packet::decode(&bytes[..length], Kind::Agreed));
    packet.is_some_and(|packet| packet.lane == channel.own_lane.nonce())
}

/// A listening socket, to which other processes of this user connect, or those that
/// [`LinkSettings::allow`] permits. The kernel removes it when the endpoint is dropped or the
/// process ends. In a directory, the next process that listens there removes what a killed process
/// has left.
///
/// Links outlive the endpoint. Several threads may use it at the same time.
#[derive(Debug)]
pub struct Endpoint {
    builder: LinkBuilder,
    listener: Listener,
    address: LinkAddress,
    /// The process that made it, as [`fork::generation`] counts.
    process: u32,
    is_closed: AtomicBool,
}

impl Endpoint {
    pub(crate) fn listen(builder: LinkBuilder, address: LinkAddress) -> Result<Self> {
        let listener = Listener::bind(&address, &builder.settings)?;
        failpoint!("link.listening");
        let (process, is_closed) = (fork::generation(), AtomicBool::new(false));
        Ok(Self { builder, listener, address, process, is_closed })
    }

    /// Ends present and future waits for connections ([`Error::TimedOut`]).
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(self.listener.socket().as_fd(), rustix::net::Shutdown::Both);
    }

    /// Accepts connections until the endpoint is closed: the work of a thread.
    pub(crate) fn serve(&self, welcome: impl Fn(PendingConnection) -> Result<()>) {
        loop {
            let pending = self.pending(None, None);
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = pending.and_then(&welcome) {
                tracing::warn!(%error, "a process cannot be accepted");
                std::thread::sleep(ERROR_DELAY);
            }
        }
    }

    /// Returns the address for processes that connect.
    #[must_use]
    pub const fn address(&self) -> LinkAddress {
        self.address
    }

    /// Waits for a process to connect. `None` waits without a timeout.
    ///
    /// Refuses processes of other users. Closes the connection of a process that sends nothing
    /// within [`LinkSettings::handshake`].
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`]; [`Error::System`]: no descriptors are left.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Link> {
        // A time beyond the range of the clock counts as no timeout.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let remaining = end.map(|end| end.saturating_duration_since(Instant::now()));
            let pending =
                self.pending(remaining, self.builder.settings.interrupt).map_err(|error| match error {
                    Error::TimedOut { .. } => timed_out("a connection", timeout),
                    error => error,
                })?;
            if pending.hello.words != [0; 4] {
                tracing::warn!(pending.pid, "a rank of a job connected to an endpoint for links");
                pending.refuse([1, 0, 0, 0]);
                continue;
            }
            let (shared, fds) =
                InboxShared::create(self.builder.settings.clone(), self.builder.importer, None)?;
            if let Some(channel) = pending.welcome(&shared, &fds)? {
                return Ok(Link::new(channel));
            }
        }
    }

    /// Waits for a process to connect and to send its hello.
    pub(crate) fn pending(
        &self,
        timeout: Option<Duration>,
        interrupt: Option<fn() -> bool>,
    ) -> Result<PendingConnection> {
        if self.process != fork::generation() {
            return Err(Error::Forked);
        }
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(timed_out("a connection", timeout));
            }
            let remaining = end.map(|end| end.saturating_duration_since(Instant::now()));
            match rustix::net::accept_with(self.listener.socket().as_fd(), SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    failpoint!("link.accepted");
                    if let Some(pending) = self.receive_hello(socket, remaining)? {
                        return Ok(pending);
                    }
                }
                Err(Errno::AGAIN) => {
                    if remaining.is_some_and(|remaining| remaining.is_zero()) {
                        return Err(timed_out("a connection", timeout));
                    }
                    check_interrupt(interrupt)?;
                    let most = sys::slice(remaining, interrupt);
                    sys::is_ready(self.listener.socket().as_fd(), PollFlags::IN, most)
                        .map_err(Error::system("poll"))?;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(Error::system("accept")(errno)),
            }
        }
    }

    /// Receives the hello of a connected process. Returns `None` and closes the connection if the
    /// process is not permitted, or sends no hello in time.
    fn receive_hello(
        &self,
        socket: OwnedFd,
        remaining: Option<Duration>,
    ) -> Result<Option<PendingConnection>> {
        let handshake = self.builder.settings.handshake;
        let wait =
            remaining.map_or(handshake, |remaining| remaining.max(Duration::from_millis(1)).min(handshake));
        let rule = self.builder.settings.rule();
        match contact::receive_hello(&socket, &self.address, rule, Deadline::after(wait)) {
            Ok((pid, hello, fds)) => Ok(Some(PendingConnection { pid, hello, socket, fds })),
            Err(error @ Error::System { errno: Errno::MFILE | Errno::NFILE, .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a connection was refused");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
impl LinkBuilder {
    /// Makes both ends of a link.
    pub(crate) fn pair(&self) -> [Link; 2] {
        let endpoint = self.bind().unwrap();
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| self.connect(&endpoint.address(), None).unwrap());
            [endpoint.accept(None).unwrap(), peer.join().unwrap()]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_round_trip() {
        let packet = Packet { lane: 1 << 100 | 5, catalog: 9, base: 0x7fff_0000, words: [1, 2, 3, u32::MAX] };
        let bytes = packet.encode(Kind::Hello);
        assert_eq!(Packet::decode(&bytes, Kind::Hello), Some(packet));
        assert_eq!(Packet::decode(&bytes, Kind::Welcome), None);
        assert_eq!(Packet::decode(&bytes[1..], Kind::Hello), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..70)) {
            for kind in [Kind::Hello, Kind::Welcome, Kind::Refused, Kind::Agreed] {
                let _ = Packet::decode(&bytes, kind);
            }
        }
    }
}
