//! [`Endpoint`]: where other processes connect; and connecting.

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use umf_ipc::Importer;
use umf_ipc::fd_socket::Deadline;
use umf_ipc::system::boot_id_bytes;
use umf_os::process::random;
use umf_os::socket::Peer;
use umf_os::socket::peer;
use umf_os::socket::peer_of;
use umf_sync::{failpoint, fork};

use crate::address::{SOCKET, is_plain};
use crate::engines::Engines;
use crate::key::Side;
use crate::lane::{Bell, OwnLane, PeerLane};
use crate::shared::{Fds, Lanes, Shared};
use crate::sys::CloseOnFork;
use crate::wire::{self, Here, Intro, Kind, Packet, Reply};
use crate::{Error, Link, LinkAddress, LinkSettings, Result, sys};

/// Makes endpoints and links: with which settings, and who opens memory of peers.
///
/// # Examples
/// ```
/// # fn main() -> umf_link::Result<()> {
/// use umf_link::LinkBuilder;
/// let endpoint = LinkBuilder::new().bind()?;
/// let address = endpoint.address(); // 128 plain bytes: into argv, MPI, a file
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
    settings: LinkSettings,
    importer: Option<&'static Importer>,
    /// Where one thread waits for all of them.
    bell: Option<SharedBell>,
}

/// A bell, which several links may have, and the fd to send.
#[derive(Clone, Debug)]
struct SharedBell {
    bell: Arc<Bell>,
    fd: Arc<CloseOnFork>,
}

impl SharedBell {
    fn make() -> sys::Result<Self> {
        let (bell, fd) = Bell::create()?;
        Ok(Self { bell: Arc::new(bell), fd: Arc::new(CloseOnFork::new(fd)?) })
    }
}

impl LinkBuilder {
    /// With settings at their defaults, and nobody to open memory of peers.
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

    /// Who opens memory of peers. Without one, nothing is mapped, and nothing can be received as a view.
    #[must_use]
    pub const fn importer(mut self, importer: &'static Importer) -> Self {
        self.importer = Some(importer);
        self
    }

    /// An endpoint that is known by its address alone.
    ///
    /// # Errors
    /// [`Error::System`]: no fds left.
    pub fn bind(&self) -> Result<Endpoint> {
        let nonce = random().map_err(Error::system("getrandom"))?;
        let digits = data_encoding::HEXLOWER.encode(&nonce);
        Endpoint::listen(self.clone(), &format!("{SOCKET}{digits}"))
    }

    /// An endpoint that processes of this user find by its name: [`LinkAddress::of_name`].
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::NameTaken`]; as [`LinkBuilder::bind`].
    pub fn named(&self, name: &str) -> Result<Endpoint> {
        Endpoint::listen(self.clone(), &socket_of(name)?)
    }

    /// Connects to an endpoint. `None` waits as long as it takes.
    ///
    /// # Errors
    /// [`Error::OtherMachine`], [`Error::NobodyThere`], [`Error::OtherUser`]; [`Error::TimedOut`] if nobody accepts;
    /// [`Error::System`]: no fds, no shared memory left. Nothing stays open after an error.
    pub fn connect(&self, address: &LinkAddress, timeout: Option<Duration>) -> Result<Link> {
        match self.connect_as(address, timeout, None)? {
            Ok(link) => Ok(link),
            Err(_) => Err(odd(address.pid().cast_signed())),
        }
    }

    /// As [`LinkBuilder::connect`], as a rank of a job, which may be refused.
    pub(crate) fn connect_as(
        &self,
        address: &LinkAddress,
        timeout: Option<Duration>,
        intro: Option<Intro>,
    ) -> Result<core::result::Result<Link, Reply>> {
        let (theirs, mine) = (address.boot_id(), boot_id_bytes());
        if theirs != [0; 16] && mine != [0; 16] && theirs != mine {
            return Err(Error::OtherMachine);
        }
        // Further off than clocks reach.
        let deadline = Deadline::after(timeout.unwrap_or(Duration::MAX));
        let late = |errno| match errno {
            Errno::TIMEDOUT => timed_out("accepting the connection", timeout),
            Errno::CONNRESET | Errno::PIPE => {
                Error::NobodyThere { name: address.socket().to_owned(), pid: address.pid() }
            }
            errno => Error::system("connect")(errno),
        };
        let socket = sys::new_socket().map_err(Error::system("socket"))?;
        sys::connect(&socket, address.socket().as_bytes(), deadline).map_err(|errno| match errno {
            Errno::CONNREFUSED => {
                Error::NobodyThere { name: address.socket().to_owned(), pid: address.pid() }
            }
            errno => late(errno),
        })?;
        failpoint!("link.connected");
        let pid = trusted(&socket)?;
        let nonce = u128::from_le_bytes(random().map_err(Error::system("getrandom"))?);
        let made = Made::new(self, nonce)?;
        failpoint!("link.lane_made");
        made.send(&socket, Kind::Hello, Intro::encode(intro)).map_err(late)?;
        failpoint!("link.proposed");
        let mut bytes = [0; wire::SIZE + 1];
        let (length, fds) = sys::receive(&socket, &mut bytes, deadline).map_err(late)?;
        let odd = odd(pid);
        let welcome = Packet::decode(&bytes[..length], Kind::Welcome).filter(|packet| packet.nonce == nonce);
        let welcome = welcome.ok_or(odd.clone())?;
        match Reply::decode(welcome.words) {
            Some(Reply::Yes) => {}
            Some(refused) => return Ok(Err(refused)),
            None => return Err(odd),
        }
        let lanes = made.join(&fds, nonce)?.ok_or(odd)?;
        let link = self.link(lanes, Side::Connector, socket, pid, welcome.base)?;
        if intro.is_some() {
            let agreed = Packet { base: 0, nonce, words: [0; 4] }.encode(Kind::Agreed);
            link.shared.say(&agreed).map_err(late)?;
        }
        Ok(Ok(link))
    }

    /// An endpoint at a socket of this name.
    pub(crate) fn listen(&self, socket: &str) -> Result<Endpoint> {
        Endpoint::listen(self.clone(), socket)
    }

    /// The process of this user that listens at an address, if one does; what is given is said to it.
    pub(crate) fn who(
        &self,
        address: &LinkAddress,
        patience: Duration,
        here: Option<Here>,
    ) -> Result<Option<i32>> {
        let socket = sys::new_socket().map_err(Error::system("socket"))?;
        match sys::connect(&socket, address.socket().as_bytes(), Deadline::after(patience)) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => return Ok(None),
            Err(errno) => return Err(Error::system("connect")(errno)),
        }
        let Ok(pid) = trusted(&socket) else { return Ok(None) };
        if let Some(here) = here {
            // If it went just now, it need not know.
            let _ = sys::send(socket.as_fd(), &here.encode(), &[]);
        }
        Ok(Some(pid))
    }

    /// As it is for this many processes that all talk to each other: one bell for all links.
    pub(crate) fn among(&self, size: usize) -> Result<(Self, Arc<Bell>)> {
        let mut among = self.clone();
        among.settings.is_crowded = size > sys::processors();
        let shared = SharedBell::make().map_err(Error::system("making the memory of a fabric"))?;
        let bell = Arc::clone(&shared.bell);
        among.bell = Some(shared);
        Ok((among, bell))
    }

    pub(crate) const fn set(&self) -> &LinkSettings {
        &self.settings
    }

    fn link(&self, lanes: Lanes, me: Side, socket: OwnedFd, pid: i32, base: u64) -> Result<Link> {
        let fds = Fds::new(socket)?;
        let engines = Engines::probe(&lanes.mine, (pid, base), &self.settings, self.importer.is_some());
        tracing::debug!(pid, %engines, "a link was made");
        let given = (self.settings.clone(), self.importer);
        let shared = Shared::new(lanes, me, fds, pid, given, engines);
        failpoint!("link.made");
        Ok(Link::new(Arc::new(shared)))
    }
}

/// What one process makes for a link, and sends to the other one.
struct Made {
    lane: OwnLane,
    lane_fd: OwnedFd,
    bell: SharedBell,
}

impl Made {
    fn new(builder: &LinkBuilder, nonce: u128) -> Result<Self> {
        let failed = Error::system("making the memory of a link");
        let (lane, lane_fd) = OwnLane::create(nonce).map_err(&failed)?;
        let bell = builder.bell.clone().map_or_else(SharedBell::make, Ok).map_err(failed)?;
        Ok(Self { lane, lane_fd, bell })
    }

    fn send(&self, socket: &OwnedFd, kind: Kind, words: [u32; 4]) -> sys::Result<()> {
        let packet = Packet { base: self.lane.base(), nonce: self.lane.nonce(), words }.encode(kind);
        sys::send(socket.as_fd(), &packet, &[self.lane_fd.as_fd(), self.bell.fd.as_fd()])
    }

    /// With what the other one has sent; `None` if that is no lane and no bell.
    fn join(self, fds: &[OwnedFd], nonce: u128) -> Result<Option<Lanes>> {
        let [lane, bell] = fds else { return Ok(None) };
        let failed = Error::system("mapping the memory of a link");
        let theirs = PeerLane::adopt(lane, nonce).map_err(&failed)?;
        let their_bell = Bell::adopt(bell).map_err(failed)?;
        let (mine, my_bell) = (self.lane, self.bell.bell);
        let joined = |(theirs, their_bell)| Lanes { mine, theirs, my_bell, their_bell };
        Ok(theirs.zip(their_bell).map(joined))
    }
}

fn odd(pid: i32) -> Error {
    Error::Misbehaved { pid, what: "it does not answer as an endpoint does" }
}

fn timed_out(what: &'static str, timeout: Option<Duration>) -> Error {
    let milliseconds = timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    Error::TimedOut { what, milliseconds }
}

/// The process at the other end, if it is this user's.
fn trusted(socket: &OwnedFd) -> Result<i32> {
    let failed = Error::system("getsockopt");
    let is_trusted = peer_of(socket.as_fd()).map_err(&failed)? == Peer::Trusted;
    let (uid, pid) = peer(socket.as_fd()).map_err(&failed)?;
    if is_trusted { Ok(pid) } else { Err(Error::OtherUser { pid, uid, mine: sys::effective_uid() }) }
}

/// The socket of a named endpoint.
fn socket_of(name: &str) -> Result<String> {
    const LONGEST: usize = 48;
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > LONGEST {
        "it has more than 48 characters"
    } else if !name.bytes().all(is_plain) {
        "letters and digits of ASCII and . _ : / + = @ - are allowed"
    } else {
        return Ok(format!("{SOCKET}{}-{name}", sys::effective_uid()));
    };
    Err(Error::BadName { name: name.chars().take(64).collect(), why })
}

impl LinkAddress {
    /// The address of the endpoint that a process of this user has made with this name, on this machine.
    ///
    /// # Errors
    /// [`Error::BadName`].
    pub fn of_name(name: &str) -> Result<Self> {
        Ok(Self::new(boot_id_bytes(), 0, &socket_of(name)?))
    }
}

/// Who has said hello, and was not answered yet.
#[derive(Debug)]
pub(crate) struct Guest {
    pub pid: i32,
    socket: OwnedFd,
    hello: Packet,
    fds: Vec<OwnedFd>,
}

/// Who connected.
#[derive(Debug)]
pub(crate) enum Arrival {
    Link(Box<Link>),
    /// A rank of a job, which is to be answered.
    Rank(Box<Guest>, Intro),
    /// A process that is a rank of a job.
    Here(i32, Here),
}

/// Where other processes of this user connect. Nothing is left of it when it is dropped, or its process is killed.
///
/// Links that were made stay when the endpoint is dropped. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Endpoint {
    builder: LinkBuilder,
    listener: Arc<Fds>,
    address: LinkAddress,
    process: u32,
    turns_away: AtomicBool,
}

impl Endpoint {
    fn listen(builder: LinkBuilder, name: &str) -> Result<Self> {
        let socket = sys::new_socket().map_err(Error::system("socket"))?;
        sys::listen(&socket, name.as_bytes()).map_err(|errno| match errno {
            Errno::ADDRINUSE => Error::NameTaken { name: name.to_owned() },
            errno => Error::system("bind")(errno),
        })?;
        failpoint!("link.listening");
        // So that a connection that went away meanwhile is not waited for.
        rustix::io::ioctl_fionbio(&socket, true).map_err(Error::system("ioctl"))?;
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let address = LinkAddress::new(boot_id_bytes(), pid, name);
        Ok(Self {
            builder,
            listener: Fds::new(socket)?,
            address,
            process: fork::generation(),
            turns_away: AtomicBool::new(false),
        })
    }

    /// Whoever waits for a connection, now or later, waits no longer ([`Error::TimedOut`]).
    pub(crate) fn turn_away(&self) {
        self.turns_away.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(self.listener.socket(), rustix::net::Shutdown::Both);
    }

    /// Where it can be reached.
    #[must_use]
    pub const fn address(&self) -> LinkAddress {
        self.address
    }

    /// As [`Endpoint::accept`]; also yields ranks of a job that say that they are there.
    pub(crate) fn arrival(&self) -> Result<Arrival> {
        self.arrive(None)
    }

    /// Waits for somebody to connect. `None` waits as long as it takes.
    ///
    /// Processes of other users are turned away, and who connects and says nothing has [`LinkSettings::handshake`] to do so.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`]; [`Error::System`]: no fds left.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Link> {
        // Further off than clocks reach: for ever.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_rank =
            |pid| tracing::warn!(pid, "a process connected, and was no peer: it is a rank of a job");
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match self.arrive(left) {
                Ok(Arrival::Link(link)) => return Ok(*link),
                Ok(Arrival::Here(pid, _)) => is_rank(pid),
                Ok(Arrival::Rank(guest, _)) => {
                    is_rank(guest.pid);
                    self.refuse(*guest, Reply::No);
                }
                Err(Error::TimedOut { .. }) => return Err(timed_out("a connection", timeout)),
                Err(error) => return Err(error),
            }
        }
    }

    fn arrive(&self, timeout: Option<Duration>) -> Result<Arrival> {
        if self.process != fork::generation() {
            return Err(Error::Forked);
        }
        // Further off than clocks reach: for ever.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.turns_away.load(Ordering::Acquire) {
                return Err(timed_out("a connection", timeout));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match rustix::net::accept_with(self.listener.socket(), SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    failpoint!("link.accepted");
                    if let Some(arrival) = self.meet(socket, left)? {
                        return Ok(arrival);
                    }
                }
                Err(Errno::AGAIN) => {
                    if left.is_some_and(|left| left.is_zero()) {
                        return Err(timed_out("a connection", timeout));
                    }
                    sys::is_ready(self.listener.socket(), PollFlags::IN, left)
                        .map_err(Error::system("poll"))?;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(Error::system("accept")(errno)),
            }
        }
    }

    /// `None` if who connected is nobody to have a link with.
    fn meet(&self, socket: OwnedFd, left: Option<Duration>) -> Result<Option<Arrival>> {
        let pid = match trusted(&socket) {
            Ok(pid) => pid,
            Err(error) => {
                tracing::warn!(%error, "a connection was turned away");
                return Ok(None);
            }
        };
        let handshake = self.builder.settings.handshake;
        let deadline =
            Deadline::after(left.map_or(handshake, |left| left.max(Duration::from_millis(1)).min(handshake)));
        let mut bytes = [0; wire::SIZE + 1];
        let nobody = |why: &dyn core::fmt::Display| {
            tracing::warn!(pid, %why, "a process connected, and was no peer");
            Ok(None)
        };
        let (length, fds) = match sys::receive(&socket, &mut bytes, deadline) {
            Ok(received) => received,
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => return Err(Error::system("recvmsg")(errno)),
            Err(errno) => return nobody(&errno),
        };
        if let (Some(here), true) = (Here::decode(&bytes[..length]), fds.is_empty()) {
            return Ok(Some(Arrival::Here(pid, here)));
        }
        let Some(hello) = Packet::decode(&bytes[..length], Kind::Hello) else {
            return nobody(&"it did not say hello with the memory of a link");
        };
        let Some(intro) = Intro::decode(hello.words) else {
            return nobody(&"it did not say who it is");
        };
        let guest = Guest { pid, socket, hello, fds };
        match intro {
            Some(intro) => Ok(Some(Arrival::Rank(Box::new(guest), intro))),
            None => Ok(self.welcome(guest)?.map(|link| Arrival::Link(Box::new(link)))),
        }
    }

    /// Makes the link with who has said hello; `None` if it has gone, or sent no lane.
    pub(crate) fn welcome(&self, guest: Guest) -> Result<Option<Link>> {
        let Guest { pid, socket, hello, fds } = guest;
        let made = Made::new(&self.builder, hello.nonce)?;
        let answered = made.send(&socket, Kind::Welcome, Reply::Yes.encode());
        failpoint!("link.lane_sent");
        let lanes = made.join(&fds, hello.nonce)?;
        let (Some(lanes), Ok(())) = (lanes, answered) else {
            tracing::warn!(pid, "a process connected, and was no peer: it has gone, or sent no lane");
            return Ok(None);
        };
        failpoint!("link.welcomed");
        self.builder.link(lanes, Side::Acceptor, socket, pid, hello.base).map(Some)
    }

    /// Waits for a rank to say that it has not given up meanwhile.
    pub(crate) fn has_agreed(&self, link: &Link) -> bool {
        let mut bytes = [0; wire::SIZE];
        let agreed = link.shared.hear(&mut bytes, Deadline::after(self.builder.settings.handshake));
        let packet = agreed.ok().and_then(|length| Packet::decode(&bytes[..length], Kind::Agreed));
        packet.is_some_and(|packet| packet.nonce == link.shared.mine.nonce())
    }

    /// Tells who has said hello that there is no link, and why.
    pub(crate) fn refuse(&self, guest: Guest, why: Reply) {
        let packet = Packet { base: 0, nonce: guest.hello.nonce, words: why.encode() }.encode(Kind::Welcome);
        // Who is gone does not hear it.
        let _ = sys::send(guest.socket.as_fd(), &packet, &[]);
    }
}

#[cfg(test)]
impl LinkBuilder {
    /// Both ends of a link.
    pub(crate) fn pair(&self) -> [Link; 2] {
        let endpoint = self.bind().unwrap();
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| self.connect(&endpoint.address(), None).unwrap());
            [endpoint.accept(None).unwrap(), peer.join().unwrap()]
        })
    }
}
