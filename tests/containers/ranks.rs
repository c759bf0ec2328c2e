//! Four processes in four containers that have nothing in common but a directory, which has another
//! path in each. Each process shares memory with each other one, or exchanges messages with it; one
//! of them is killed and replaced.

use std::path::Path;

use umf_tests::Failure;

use crate::checks::{Found, mode};
use crate::container::{Container, Plan, Tool, Workshop};

const COUNT: usize = 4;

/// The users of the ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Users {
    /// Each container has a user namespace, and all map the same user.
    One,
    /// Each container has a user namespace with a user of its own.
    Each,
}

/// What the ranks do; with the directory on the host.
type Test = fn(&mut Ranks, &Path) -> Result<(), String>;

const SHARED: &str = "leases, stale handles, a killed and a new rank";
const EXCHANGED: &str = "messages, a killed and a new rank";
/// Messages in each direction.
const MESSAGES: usize = 40;

/// Handles of the blocks of a rank.
struct Handles {
    freed: String,
    kept: String,
}

/// The ranks, by number.
struct Ranks {
    containers: Vec<Container>,
}

impl Ranks {
    fn ask(&mut self, rank: usize, command: &str) -> Result<String, String> {
        let answer = self.containers[rank].ask("rank", command);
        answer.map_err(|failure| format!("rank {rank}: {}: {failure}", command.get(..40).unwrap_or(command)))
    }

    fn fails(&mut self, rank: usize, command: &str, variant: &str) -> Result<(), String> {
        match self.containers[rank].ask("rank", command) {
            Err(failure) if failure.variant == variant => Ok(()),
            other => Err(format!("rank {rank}: {other:?} instead of {variant}")),
        }
    }

    fn check(&mut self, rank: usize, name: &str, seed: usize) -> Result<(), String> {
        match self.ask(rank, &format!("check {name} {seed}"))?.as_str() {
            "same" => Ok(()),
            other => Err(format!("rank {rank}: {name} is {other}")),
        }
    }

    /// Starts the process of a rank, with blocks `p.freed` and `apart.kept` that hold its number.
    fn start(&mut self, rank: usize) -> Result<Handles, String> {
        self.containers[rank].start("rank", None).map_err(|failure: Failure| failure.to_string())?;
        self.ask(rank, "pool p shared")?;
        self.ask(rank, "pool apart isolated")?;
        let mut block = |pool: &str, name: &str| {
            self.ask(rank, &format!("alloc {pool} 4096 -> {pool}.{name}"))?;
            self.ask(rank, &format!("fill {pool}.{name} {rank}"))?;
            self.ask(rank, &format!("handle {pool}.{name}"))
        };
        Ok(Handles { freed: block("p", "freed")?, kept: block("apart", "kept")? })
    }

    /// Opens `handle` of `owner` in each other rank, under the owner's name with this letter.
    fn open_elsewhere(&mut self, owner: usize, letter: char, handle: &str) -> Result<(), String> {
        for rank in others(owner) {
            self.ask(rank, &format!("open {handle} -> {letter}{owner}"))?;
            self.check(rank, &format!("{letter}{owner}"), owner)?;
        }
        Ok(())
    }

    /// Starts the process of a rank with a mesh, and returns its address.
    fn start_mesh(&mut self, rank: usize) -> Result<String, String> {
        self.containers[rank].start("rank", None).map_err(|failure| failure.to_string())?;
        self.new_mesh(rank)
    }

    fn new_mesh(&mut self, rank: usize) -> Result<String, String> {
        self.ask(rank, "mesh-new mesh")
    }

    /// Starts sending to and receiving from another rank, in this order.
    fn begin_exchange(
        &mut self,
        addresses: &[String],
        rank: usize,
        other: usize,
        order: &str,
    ) -> Result<(), String> {
        let address = &addresses[other];
        let command = format!("mesh-exchange mesh {address} {order} {MESSAGES} {rank}000 {other}000");
        self.containers[rank].begin_to_ask("rank", &command).map_err(|failure| failure.to_string())
    }

    /// Exchanges messages of two ranks, which both send at once.
    fn exchange(&mut self, addresses: &[String], one: usize, other: usize) -> Result<(), String> {
        for [rank, peer] in [[one, other], [other, one]] {
            self.begin_exchange(addresses, rank, peer, "sends")?;
        }
        for rank in [one, other] {
            let answer = self.containers[rank].answer();
            answer.map_err(|failure| format!("rank {rank} of {one} and {other}: {failure}"))?;
        }
        Ok(())
    }

    /// Waits for the end of an exchange with a killed rank.
    fn is_gone(&mut self, rank: usize) -> Result<(), String> {
        match self.containers[rank].answer() {
            Err(failure) if failure.variant == "PeerGone" => Ok(()),
            other => Err(format!("rank {rank}: {other:?} instead of PeerGone")),
        }
    }
}

fn others(owner: usize) -> impl Iterator<Item = usize> {
    (0..COUNT).filter(move |&rank| rank != owner)
}

/// Runs the tests with the users that this machine has. Returns names and results.
pub(crate) fn run(workshop: &Workshop) -> Vec<(&'static str, Found)> {
    let all: [(_, _, Test, _); 4] = [
        ("four ranks in four user namespaces of one user", Users::One, share, SHARED),
        ("four ranks of four users in user namespaces", Users::Each, share, SHARED),
        ("four meshes in four user namespaces of one user", Users::One, exchange, EXCHANGED),
        ("four meshes of four users in user namespaces", Users::Each, exchange, EXCHANGED),
    ];
    let run = |(name, users, test, text)| (name, run_with(workshop, users, test, text));
    all.into_iter().map(run).collect()
}

fn run_with(workshop: &Workshop, users: Users, test: Test, text: &str) -> Found {
    if let Some(why) = workshop.lacks(Tool::Bwrap) {
        return Found::Impossible(why);
    }
    if users == Users::Each && !workshop.is_root() {
        return Found::Impossible("processes of other uids need root".to_owned());
    }
    let directory = match workshop.directory(0o1777) {
        Ok(directory) => directory,
        Err(error) => return Found::Impossible(error.to_string()),
    };
    let start = |rank| workshop.start(&plan(workshop, users, &directory, rank));
    let containers = match (0..COUNT).map(start).collect() {
        Ok(containers) => containers,
        Err(error) => return Found::Impossible(format!("bwrap with user namespaces: {error}")),
    };
    let mut ranks = Ranks { containers };
    match test(&mut ranks, &directory) {
        Ok(()) => Found::AsExpected(text.to_owned()),
        Err(text) => Found::Other(text, ranks.containers.iter().map(Container::log).collect()),
    }
}

fn plan(workshop: &Workshop, users: Users, directory: &Path, rank: usize) -> Plan {
    let path = format!("/mnt/{rank}/umf");
    let number = u32::try_from(rank).unwrap();
    let (uid, allow) = match users {
        Users::One => (1000, "same-user"),
        Users::Each => (1000 + number, "handle"),
    };
    Plan {
        tool: Some(Tool::Bwrap),
        is_filtered: true,
        has_host_pids: false,
        has_host_network: false,
        user_namespace: Some(1000),
        started_by: workshop.is_root().then_some(uid),
        directory: Some((directory.to_owned(), path.clone())),
        variables: [
            ("UMF_LOG", "level:debug;output:stderr"),
            ("UMF_IPC_DIRECTORY", &path),
            ("UMF_IPC_ALLOW", allow),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
    }
}

fn share(ranks: &mut Ranks, directory: &Path) -> Result<(), String> {
    let mut handles = (0..COUNT).map(|rank| ranks.start(rank)).collect::<Result<Vec<_>, _>>()?;
    for (owner, handles) in handles.iter().enumerate() {
        ranks.open_elsewhere(owner, 'f', &handles.freed)?;
    }
    for rank in 0..COUNT {
        let found = mode(&ranks.containers[rank]);
        if found != "directory" {
            return Err(format!("rank {rank} got its memory by {found}"));
        }
    }
    // Freed blocks keep their content for the processes that have them open.
    for (owner, handles) in handles.iter().enumerate() {
        ranks.ask(owner, "free p p.freed")?;
        ranks.ask(owner, "alloc p 4096 -> p.next")?;
        ranks.ask(owner, "fill p.next 99")?;
        for rank in others(owner) {
            ranks.check(rank, &format!("f{owner}"), owner)?;
            ranks.fails(rank, &format!("open {} -> again", handles.freed), "Stale")?;
        }
    }
    // The last rank is killed: its memory stays readable, and its leases end.
    let last = COUNT - 1;
    ranks.containers[last].kill("rank").map_err(|failure| failure.to_string())?;
    for rank in others(last) {
        ranks.check(rank, &format!("f{last}"), last)?;
        ranks.fails(rank, &format!("open {} -> kept", handles[last].kept), "ProducerGone")?;
        for owner in others(rank) {
            ranks.ask(rank, &format!("close f{owner}"))?;
        }
    }
    for rank in others(last) {
        let held = ranks.ask(rank, "drain 5000")?;
        if held != "0" {
            return Err(format!("rank {rank} holds {held} bytes for the killed rank"));
        }
    }
    // Another process takes its place, and removes what the killed one has left in the directory.
    handles[last] = ranks.start(last)?;
    for (owner, handles) in handles.iter().enumerate() {
        ranks.open_elsewhere(owner, 'k', &handles.kept)?;
    }
    has_sockets(directory)
}

/// Checks that each rank has one socket in the directory, and no other process has.
fn has_sockets(directory: &Path) -> Result<(), String> {
    let names = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
    let names: Vec<String> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let sockets = names.iter().filter(|name| !name.ends_with(".lock")).count();
    if sockets == COUNT { Ok(()) } else { Err(format!("the directory has {names:?}")) }
}

/// Each rank exchanges messages with each other one, over links that are made at the first message.
fn exchange(ranks: &mut Ranks, directory: &Path) -> Result<(), String> {
    let mut addresses = (0..COUNT).map(|rank| ranks.start_mesh(rank)).collect::<Result<Vec<_>, _>>()?;
    let last = COUNT - 1;
    // The last rank has a link with the first one only.
    for [one, other] in [[0, 1], [2, 0], [1, 2], [last, 0]] {
        ranks.exchange(&addresses, one, other)?;
    }
    // It is killed while others wait for its messages, with a link or without.
    let waiting = [0, 1];
    for rank in waiting {
        ranks.begin_exchange(&addresses, rank, last, "answers")?;
    }
    ranks.containers[last].kill("rank").map_err(|failure| failure.to_string())?;
    for rank in waiting {
        ranks.is_gone(rank)?;
    }
    // One that has neither a link nor waits finds out when it sends.
    ranks.begin_exchange(&addresses, 2, last, "sends")?;
    ranks.is_gone(2)?;
    // The command has ended their meshes. Another process takes the place of the killed one.
    ranks.containers[last].start("rank", None).map_err(|failure| failure.to_string())?;
    for (rank, address) in addresses.iter_mut().enumerate() {
        *address = ranks.new_mesh(rank)?;
    }
    for one in 0..COUNT {
        for other in one + 1..COUNT {
            ranks.exchange(&addresses, one, other)?;
        }
    }
    has_sockets(directory)
}
