//! The cells of the matrix: where producer and importer run, and what an open must answer there.

use std::fmt;

use crate::container::Tool;

/// Declares an enum with a name for each value, and the list of its values.
macro_rules! words {
    ($(#[$attribute:meta])* $name:ident { $($(#[$about:meta])* $value:ident = $word:literal),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$about])* $value),* }

        impl $name {
            #[allow(dead_code, reason = "not every list is used")]
            const ALL: &[Self] = &[$(Self::$value),*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$value => $word),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

words! {
    /// Where the two processes run.
    Place {
        /// In one container.
        Same = "same",
        /// In two containers.
        Siblings = "siblings",
        /// The producer runs on the host, the importer in a container.
        FromHost = "host>cont",
        /// The producer runs in a container, the importer on the host.
        ToHost = "cont>host",
    }
}

words! {
    /// The users of the two processes. Processes without a user namespace of their own are in that
    /// of the host.
    Users {
        /// Both are root. In a container with the capabilities that Docker gives, on the host with
        /// all.
        Root = "root",
        /// Both have the same uid, and no capability.
        Same = "same uid",
        /// They have different uids, and no capability.
        Other = "other uid",
        /// Each container has a user namespace, and all map the same user of the host: rootless
        /// Podman, `userns-remap` of Docker.
        Namespace = "userns",
        /// Each container has a user namespace that maps a user of its own: `hostUsers: false` of
        /// Kubernetes.
        Remapped = "userns+uid",
    }
}

words! {
    /// The memory that is shared.
    Memory {
        /// A memfd.
        Memfd = "memfd",
        /// CUDA virtual memory of the software driver, which `/proc` cannot reopen.
        Cuda = "cuda",
    }
}

words! {
    /// The directory that both have in common, with the setting `ipc.allow`.
    Directory {
        /// There is none.
        None = "-",
        /// `same-user`.
        SameUser = "same-user",
        /// `handle`.
        Handle = "handle",
        /// `same-user`, and the importer has no directory.
        Unset = "importer -",
        /// `same-user`, and each has another directory.
        Other = "two",
        /// `same-user`, and every user can rename files of others in it.
        Unsafe = "mode 777",
    }
}

words! {
    /// Why an exchange mode is refused.
    Cause {
        /// A seccomp filter of the importer refuses `pidfd_getfd`.
        Seccomp = "seccomp",
        /// The processes have different users.
        Uid = "uid",
        /// The processes are in different user namespaces.
        UserNamespace = "user namespace",
        /// The producer has capabilities that the importer lacks.
        Capabilities = "capabilities",
        /// `kernel.yama.ptrace_scope`.
        Yama = "yama",
        /// The processes are in different pid namespaces.
        PidNamespace = "pid namespace",
        /// The processes are in different network namespaces.
        NetworkNamespace = "network namespace",
        /// The producer has not started its socket.
        NotServed = "not served",
        /// `/proc` cannot reopen the memory.
        Memory = "memory",
        /// One of them has no directory.
        NoDirectory = "no directory",
        /// The producer answers in another directory.
        OtherDirectory = "other directory",
    }
}

impl Directory {
    /// Returns the value of `ipc.allow`.
    pub(crate) const fn allow(self) -> &'static str {
        match self {
            Self::Handle => "handle",
            _ => "same-user",
        }
    }
}

/// One cell. A container without a common pid or network namespace has one of its own; "common" is
/// that of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) tool: Tool,
    pub(crate) place: Place,
    pub(crate) is_filtered: bool,
    pub(crate) shares_pids: bool,
    pub(crate) shares_network: bool,
    pub(crate) users: Users,
    pub(crate) memory: Memory,
    pub(crate) directory: Directory,
}

/// What this machine is, as far as it decides over a mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Whether the runner is in another pid namespace than the machine's first, so that a producer
    /// on the host serves its socket.
    pub(crate) is_nested: bool,
    /// `kernel.yama.ptrace_scope`.
    pub(crate) yama: u32,
}

/// What an open must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It works, by this exchange mode.
    Mode(&'static str),
    /// Each of these modes is refused, for one of these causes.
    Refused(Vec<(&'static str, Vec<Cause>)>),
    /// The producer cannot export, with a reason that has this text.
    NotExported(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "ok {mode}"),
            Self::NotExported(reason) => write!(f, "not exported: {reason}"),
            Self::Refused(causes) => {
                f.write_str("refused")?;
                for (number, (mode, causes)) in causes.iter().enumerate() {
                    let causes: Vec<&str> = causes.iter().map(|cause| cause.name()).collect();
                    write!(f, "{} {mode}: {}", if number > 0 { "," } else { "" }, causes.join("/"))?;
                }
                Ok(())
            }
        }
    }
}

impl Cell {
    /// Returns all cells that a machine can have.
    pub(crate) fn all() -> Vec<Self> {
        let both = [false, true];
        let mut cells = Vec::new();
        for tool in [Tool::Bwrap, Tool::Crun] {
            for &place in Place::ALL {
                for &users in Users::ALL {
                    for (shares_pids, shares_network) in both.map(|pids| both.map(|net| (pids, net))).concat()
                    {
                        for is_filtered in both {
                            for &memory in Memory::ALL {
                                for &directory in Directory::ALL {
                                    cells.push(Self {
                                        tool,
                                        place,
                                        is_filtered,
                                        shares_pids,
                                        shares_network,
                                        users,
                                        memory,
                                        directory,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
        cells.retain(Self::exists);
        cells
    }

    /// Returns a cell for each cause of a refusal and each mode, by each tool.
    pub(crate) fn chosen() -> Vec<Self> {
        let is_chosen = |cell: &Self| {
            // What concerns the namespaces is shown without a filter by one tool, and with it by
            // the other.
            let docker = (cell.tool == Tool::Crun) == cell.is_filtered;
            let isolated = !cell.shares_pids && !cell.shares_network;
            let plain = cell.memory == Memory::Memfd;
            match (cell.place, cell.users) {
                // A directory without anything else in common: all users, filters and kinds of
                // memory.
                (Place::Siblings, _) if isolated && cell.directory != Directory::None => true,
                // Users, in common namespaces and in others.
                (Place::Siblings, _) => {
                    docker && plain && cell.directory == Directory::None && (cell.shares_network || isolated)
                }
                (Place::Same, Users::Root | Users::Other) => {
                    cell.directory == Directory::None && cell.is_filtered
                }
                (Place::Same, _) => false,
                (Place::FromHost | Place::ToHost, Users::Root | Users::Namespace) => {
                    plain
                        && cell.is_filtered
                        && (cell.shares_pids == cell.shares_network)
                        && cell.directory != Directory::SameUser
                }
                (Place::FromHost | Place::ToHost, _) => false,
            }
        };
        let mut cells = Self::all();
        cells.retain(is_chosen);
        cells
    }

    /// Returns whether the cell can be made, and is no repetition of another one.
    fn exists(&self) -> bool {
        let is_repeated = self.place == Place::Same
            && (!self.shares_pids || !self.shares_network || self.users == Users::Remapped);
        // What is wrong with a directory shows where nothing else works.
        let is_isolated = self.place == Place::Siblings && !self.shares_pids && !self.shares_network;
        let is_wrong = matches!(self.directory, Directory::Unset | Directory::Other | Directory::Unsafe);
        if is_wrong && (!is_isolated || self.memory == Memory::Cuda || self.users != Users::Same) {
            return false;
        }
        // The containers of crun are those of the host's user namespace.
        let has_tool = self.tool == Tool::Bwrap || !self.has_user_namespace();
        !is_repeated && has_tool
    }

    pub(crate) fn has_user_namespace(&self) -> bool {
        matches!(self.users, Users::Namespace | Users::Remapped)
    }

    /// Returns whether a filter, as far as there is one, is that of the importer.
    fn filters_importer(&self) -> bool {
        self.is_filtered && self.place != Place::ToHost
    }

    /// Returns why the kernel does not let the importer look into a producer whose pid it sees.
    /// Several causes hold at the same time: an error names one of them.
    fn ptrace_refusals(&self) -> &'static [Cause] {
        match (self.users, self.place) {
            (Users::Root | Users::Namespace, Place::Same) => &[],
            (Users::Root, Place::FromHost) => &[Cause::Capabilities],
            // A process has all capabilities in a user namespace that its own user has created.
            (Users::Root | Users::Same, _) | (Users::Namespace, Place::ToHost) => &[],
            (Users::Other, _) => &[Cause::Uid],
            // The host sees the uid of the container's user, and a container that of no other.
            (Users::Remapped, Place::ToHost) => &[Cause::UserNamespace, Cause::Uid],
            (Users::Namespace | Users::Remapped, _) => &[Cause::UserNamespace],
        }
    }

    /// Returns why the two do not trust each other's uid, as a socket shows it.
    fn user_refusals(&self) -> &'static [Cause] {
        match self.users {
            // Each namespace maps the user to a uid of its own, by which both sides see it.
            Users::Root | Users::Same | Users::Namespace => &[],
            Users::Other | Users::Remapped => self.ptrace_refusals(),
        }
    }

    /// Returns what an open must answer in this cell, when the importer tries all modes.
    pub(crate) fn expected(&self, machine: Machine) -> Expected {
        if self.directory == Directory::Unsafe {
            return Expected::NotExported("its mode is 0777");
        }
        let is_same = self.place == Place::Same;
        let is_yama = machine.yama > 0;
        let (pidfd, procfs) = if !self.shares_pids && !is_same {
            (vec![Cause::PidNamespace], vec![Cause::PidNamespace])
        } else {
            let mut pidfd = self.ptrace_refusals().to_vec();
            // The ledger is opened first, and it is a memfd.
            let mut procfs = pidfd.clone();
            pidfd.extend(self.filters_importer().then_some(Cause::Seccomp));
            pidfd.extend(is_yama.then_some(Cause::Yama));
            procfs.extend((self.memory == Memory::Cuda).then_some(Cause::Memory));
            (pidfd, procfs)
        };
        let is_nested = match self.place {
            Place::Same => true,
            Place::Siblings | Place::ToHost => !self.shares_pids,
            Place::FromHost => false,
        };
        // A producer that serves other users, too, has both sockets.
        let is_served = is_nested
            || machine.is_nested
            || self.directory == Directory::Handle
            || (self.memory == Memory::Cuda && is_yama);
        let by_user = if self.directory == Directory::Handle { &[] } else { self.user_refusals() };
        let socket = if !is_served {
            vec![Cause::NotServed]
        } else if !self.shares_network && !is_same {
            vec![Cause::NetworkNamespace]
        } else {
            by_user.to_vec()
        };
        let directory = match self.directory {
            Directory::None | Directory::Unset => vec![Cause::NoDirectory],
            Directory::Other => vec![Cause::OtherDirectory],
            _ => by_user.to_vec(),
        };
        let modes = vec![("pidfd", pidfd), ("procfs", procfs), ("socket", socket), ("directory", directory)];
        match modes.iter().find(|(_, causes)| causes.is_empty()) {
            Some((mode, _)) => Expected::Mode(mode),
            None => Expected::Refused(modes),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |is: bool, yes: &'static str| if is { yes } else { "-" };
        write!(
            f,
            "{:5}  {:9}  {:10}  {:7}  {:3}  {:3}  {:6}  {:10}",
            self.tool.name(),
            self.place,
            self.users,
            word(self.is_filtered, "seccomp"),
            word(self.shares_pids, "pid"),
            word(self.shares_network, "net"),
            self.memory,
            self.directory
        )
    }
}

/// The titles of the columns of a cell.
pub(crate) const TITLES: &str = "tool   place      users       filter   pid  net  memory  directory";
