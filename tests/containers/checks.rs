//! What is tried in a cell: an open, the lease of a freed block, stale handles, and processes that
//! are killed.

use std::path::PathBuf;

use umf_tests::Failure;

use crate::cell::{Cause, Cell, Directory, Expected, Machine, Memory, Place, Users};
use crate::container::{Container, Plan, Workshop};

/// The result of a cell.
pub(crate) enum Found {
    /// What was expected; with the text of an error.
    AsExpected(String),
    /// Something else; with the log of the containers.
    Other(String, String),
    /// This machine cannot make the containers, for this reason.
    Impossible(String),
}

/// The users of producer and importer without a user namespace. They need not exist.
const USERS: [u32; 2] = [1000, 1001];
/// The uid of a container's processes inside of a user namespace.
const INSIDE: u32 = 1000;
/// The setting of the directory, and what it allows.
const VARIABLES: [&str; 2] = ["UMF_IPC_DIRECTORY", "UMF_IPC_ALLOW"];

fn host_plan(variables: Vec<(String, String)>) -> Plan {
    Plan {
        tool: None,
        is_filtered: false,
        has_host_pids: true,
        has_host_network: true,
        user_namespace: None,
        started_by: None,
        directory: None,
        variables,
    }
}

/// A process of a cell: the container that it is in, and its name there.
struct Process {
    container: usize,
    name: &'static str,
    uid: Option<u32>,
}

/// The containers of a cell, with a producer and an importer.
struct Pair {
    containers: Vec<Container>,
    producer: Process,
    importer: Process,
}

impl Pair {
    /// Starts the containers. The error says why they cannot be made.
    fn start(workshop: &Workshop, cell: &Cell) -> Result<Self, String> {
        if let Some(why) = workshop.lacks(cell.tool) {
            return Err(why);
        }
        let is_root = workshop.is_root();
        let wants_user = matches!(cell.users, Users::Same | Users::Other | Users::Remapped);
        if wants_user && !is_root {
            return Err("processes of other uids need root".to_owned());
        }
        let make = |mode| workshop.directory(mode).map(Some).map_err(|error| error.to_string());
        let directories = match cell.directory {
            Directory::None => [None, None],
            Directory::Unset => [make(0o1777)?, None],
            Directory::Other => [make(0o1777)?, make(0o1777)?],
            Directory::SameUser | Directory::Handle | Directory::Unsafe => {
                let directory = make(if cell.directory == Directory::Unsafe { 0o777 } else { 0o1777 })?;
                [directory.clone(), directory]
            }
        };
        let plans = plans(cell, &directories, is_root);
        let containers =
            plans.iter().map(|plan| workshop.start(plan)).collect::<Result<Vec<_>, _>>().map_err(
                |error| format!("{} with users {:?}: {error}", cell.tool.name(), cell.users.name()),
            )?;
        let last = containers.len() - 1;
        let [producer, importer] = uids(cell, is_root);
        let mut pair = Self {
            containers,
            producer: Process { container: 0, name: "producer", uid: producer },
            importer: Process { container: last, name: "importer", uid: importer },
        };
        pair.restart_producer()
            .and_then(|()| pair.restart_importer())
            .map_err(|failure| failure.to_string())?;
        Ok(pair)
    }

    fn restart_producer(&mut self) -> Result<(), Failure> {
        self.containers[self.producer.container].start(self.producer.name, self.producer.uid)
    }

    fn restart_importer(&mut self) -> Result<(), Failure> {
        self.containers[self.importer.container].start(self.importer.name, self.importer.uid)
    }

    fn produce(&mut self, command: &str) -> Result<String, Failure> {
        self.containers[self.producer.container].ask(self.producer.name, command)
    }

    fn import(&mut self, command: &str) -> Result<String, Failure> {
        self.containers[self.importer.container].ask(self.importer.name, command)
    }

    /// Allocates a block in the pool `p`, fills it with the content of `seed`, and returns its
    /// handle.
    fn block(&mut self, name: &str, seed: u32) -> Result<String, Failure> {
        self.produce(&format!("alloc p 4096 -> p.{name}"))?;
        self.produce(&format!("fill p.{name} {seed}"))?;
        self.produce(&format!("handle p.{name}"))
    }

    /// Returns the mode by which the importer got the memory, from its log.
    fn mode(&self) -> String {
        mode(&self.containers[self.importer.container])
    }
}

/// Returns the last mode, in the order in which they are tried, by which a process of the container
/// got a descriptor. Ledger and lease table may come by an earlier one than the memory.
pub(crate) fn mode(container: &Container) -> String {
    let log = container.log();
    let fetched = log.lines().filter(|line| line.contains("fetched an fd"));
    let modes: Vec<&str> =
        fetched.filter_map(|line| line.split("mode=").nth(1)?.split_ascii_whitespace().next()).collect();
    let last = ["directory", "socket", "procfs", "pidfd"].into_iter().find(|mode| modes.contains(mode));
    last.unwrap_or("?").to_owned()
}

/// Returns the containers of a cell: that of the producer, and that of the importer if it is
/// another one.
fn plans(cell: &Cell, directories: &[Option<PathBuf>; 2], is_root: bool) -> Vec<Plan> {
    let plan = |number: usize, is_host: bool| {
        let mut variables = vec![("UMF_LOG".to_owned(), "level:debug;output:stderr".to_owned())];
        // The paths differ, and on the host it is a third one.
        let path = ["/run/umf", "/srv/exchange"][number].to_owned();
        let directory = directories[number].as_ref();
        if let Some(host) = directory {
            let path = if is_host { host.display().to_string() } else { path.clone() };
            variables.push((VARIABLES[0].to_owned(), path));
            variables.push((VARIABLES[1].to_owned(), cell.directory.allow().to_owned()));
        }
        if is_host {
            return host_plan(variables);
        }
        let started_by = match cell.users {
            Users::Namespace if is_root => Some(USERS[0]),
            Users::Remapped => Some(USERS[number]),
            _ => None,
        };
        Plan {
            tool: Some(cell.tool),
            is_filtered: cell.is_filtered,
            has_host_pids: cell.shares_pids && cell.place != Place::Same,
            has_host_network: cell.shares_network && cell.place != Place::Same,
            user_namespace: cell.has_user_namespace().then_some(INSIDE),
            started_by,
            directory: directory.map(|host| (host.clone(), path)),
            variables,
        }
    };
    match cell.place {
        Place::Same => vec![plan(0, false)],
        Place::Siblings => vec![plan(0, false), plan(1, false)],
        Place::FromHost => vec![plan(0, true), plan(1, false)],
        Place::ToHost => vec![plan(0, false), plan(1, true)],
    }
}

/// Returns the uids of producer and importer, where they are not those of their keepers.
fn uids(cell: &Cell, is_root: bool) -> [Option<u32>; 2] {
    let of_host = |number: usize| {
        let is_host = matches!((cell.place, number), (Place::FromHost, 0) | (Place::ToHost, 1));
        match cell.users {
            Users::Root => None,
            Users::Same => Some(USERS[0]),
            Users::Other => Some(USERS[number]),
            Users::Namespace => (is_host && is_root).then_some(USERS[0]),
            Users::Remapped => is_host.then_some(USERS[number]),
        }
    };
    [of_host(0), of_host(1)]
}

/// Runs a cell and compares what it finds with what is expected.
pub(crate) fn run(workshop: &Workshop, machine: Machine, cell: &Cell) -> Found {
    let expected = cell.expected(machine);
    let mut pair = match Pair::start(workshop, cell) {
        Ok(pair) => pair,
        Err(why) => return Found::Impossible(why),
    };
    match try_cell(&mut pair, cell, &expected) {
        Ok(text) => Found::AsExpected(text),
        Err(text) => {
            let log: Vec<String> = pair.containers.iter().map(Container::log).collect();
            Found::Other(text, log.concat())
        }
    }
}

fn try_cell(pair: &mut Pair, cell: &Cell, expected: &Expected) -> Result<String, String> {
    let (kind, apart) = match cell.memory {
        Memory::Memfd => ("shared", "isolated"),
        Memory::Cuda => ("cuda virtual", "cuda virtual"),
    };
    let setup = |failure: Failure| format!("the producer cannot prepare: {failure}");
    pair.produce(&format!("pool p {kind}")).map_err(setup)?;
    pair.produce(&format!("pool apart {apart}")).map_err(setup)?;
    let handle = match (pair.block("first", 1), expected) {
        (Err(failure), Expected::NotExported(reason)) if failure.message.contains(reason) => {
            return Ok(failure.to_string());
        }
        (result, _) => result.map_err(setup)?,
    };
    match (pair.import(&format!("open {handle} -> first")), expected) {
        (Ok(_), Expected::Mode(mode)) => {
            let found = pair.mode();
            if found != *mode {
                return Err(format!("ok {found}"));
            }
            share(pair, &handle)
        }
        (Ok(_), _) => Err(format!("ok {}", pair.mode())),
        (Err(failure), Expected::Refused(causes)) => is_refused(&failure, causes),
        (Err(failure), _) => Err(failure.to_string()),
    }
}

/// Checks that the error names each mode with one of its causes.
fn is_refused(failure: &Failure, causes: &[(&str, Vec<Cause>)]) -> Result<String, String> {
    let text = failure.to_string();
    if failure.variant != "NotPermitted" {
        return Err(text);
    }
    for (mode, causes) in causes {
        // The first mode follows a colon, and the others a semicolon.
        let begin = |before: &str| failure.message.split_once(&format!("{before} {mode}: "));
        let part = begin(";").or_else(|| begin(":")).and_then(|(_, rest)| rest.split(" (remedy: ").next());
        let names =
            |cause: &Cause| cause.texts().iter().any(|text| part.is_some_and(|part| part.contains(text)));
        if !causes.iter().any(names) {
            return Err(format!("the error names another cause for {mode}: {text}"));
        }
    }
    Ok(text)
}

impl Cause {
    /// Returns parts of the reasons that name this cause. One of them must be in the error.
    const fn texts(self) -> &'static [&'static str] {
        match self {
            Self::Seccomp => &["seccomp"],
            Self::Uid => &["runs as uid", "belongs to another user", "serves its own user only"],
            Self::UserNamespace => &["user namespace"],
            Self::Capabilities => &["capabilities"],
            Self::Yama => &["yama"],
            Self::PidNamespace => &["pid namespace"],
            Self::NetworkNamespace => &["network namespace"],
            Self::NotServed => &["does not answer on a socket", "does not answer on an abstract socket"],
            Self::Memory => &["cannot be opened through /proc"],
            Self::OtherDirectory => &["has no socket in"],
            Self::NoDirectory => &["does not answer in a directory", "has no directory set"],
        }
    }
}

/// Checks leases, stale handles and killed processes, with `handle` open as `first`.
fn share(pair: &mut Pair, handle: &str) -> Result<String, String> {
    let failed = |what: &'static str| move |failure: Failure| format!("{what}: {failure}");
    let is = |found: String, wanted: &str, what: &str| {
        if found == wanted { Ok(()) } else { Err(format!("{what}: {found}, not {wanted}")) }
    };
    is(pair.import("check first 1").map_err(failed("read"))?, "same", "content")?;

    // A freed block keeps its content while it is open, and its memory is not used again.
    pair.produce("free p p.first").map_err(failed("free"))?;
    for (number, name) in ["second", "third", "fourth"].iter().enumerate() {
        pair.block(name, 2 + u32::try_from(number).unwrap()).map_err(failed("allocate"))?;
    }
    is(pair.import("check first 1").map_err(failed("read after free"))?, "same", "content of a freed block")?;
    is(pair.import("is_current first").map_err(failed("is_current"))?, "false", "a freed block is current")?;
    match pair.import(&format!("open {handle} -> again")) {
        Err(failure) if failure.variant == "Stale" => {}
        other => return Err(format!("open of a freed block: {other:?}")),
    }
    pair.import("close first").map_err(failed("close"))?;
    is(pair.produce("drain 5000").map_err(failed("drain"))?, "0", "bytes held after the close")?;

    // The lease of a killed importer ends with it.
    let handle = pair.produce("handle p.second").map_err(failed("handle"))?;
    pair.import(&format!("open {handle} -> second")).map_err(failed("open of the second block"))?;
    let importer = pair.importer.name;
    pair.containers[pair.importer.container].kill(importer).map_err(failed("kill the importer"))?;
    pair.produce("free p p.second").map_err(failed("free"))?;
    is(pair.produce("drain 5000").map_err(failed("drain"))?, "0", "bytes held for a killed importer")?;

    // A killed producer is reported, and what was open stays readable.
    pair.restart_importer().map_err(failed("second importer"))?;
    let handle = pair.produce("handle p.third").map_err(failed("handle"))?;
    pair.import(&format!("open {handle} -> third")).map_err(failed("open in a second importer"))?;
    // In a file of its own, so that its open needs the producer.
    pair.produce("alloc apart 4096 -> apart.block").map_err(failed("allocate"))?;
    let other = pair.produce("handle apart.block").map_err(failed("handle"))?;
    let producer = pair.producer.name;
    pair.containers[pair.producer.container].kill(producer).map_err(failed("kill the producer"))?;
    is(
        pair.import("check third 3").map_err(failed("read after the end of the producer"))?,
        "same",
        "content",
    )?;
    match pair.import(&format!("open {other} -> other")) {
        Err(failure) if failure.variant == "ProducerGone" => Ok("leases, stale handles, kills".to_owned()),
        other => Err(format!("open after the end of the producer: {other:?}")),
    }
}
