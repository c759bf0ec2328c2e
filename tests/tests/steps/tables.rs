//! What the check takes for granted, each with its reason. An entry that names nothing is an error.

/// Crates that change nothing that another process or the kernel keeps: who is in none of these lists is looked at.
pub(crate) const OTHER_CRATES: &[(&str, &str)] = &[
    ("crates/umf-config", "reads files and the environment"),
    ("crates/umf-cli", "a program over the crate umf"),
    ("crates/umf-topology", "reads files"),
    (
        "providers/dma-buf",
        "needs devices that the machines of the campaign lack; what it changes is descriptors and mappings, which die with the process",
    ),
    (
        "crates/level-zero-soft",
        "a driver for tests, in place of a device's own, which the campaign does not watch either",
    ),
    ("crates/level-zero-sys", "declarations, and a library that is opened"),
    ("crates/umf", "the face: what it changes, it changes through the crates below it"),
];

/// System calls that only ask, or wait.
pub(crate) const QUESTIONS: &[&str] = &[
    "clock_gettime",
    "dumpable_behavior",
    "fcntl_get_seals",
    "fstat",
    "fstatfs",
    "getegid",
    "geteuid",
    "getpid",
    "getppid",
    "getrandom",
    "getrlimit",
    "getsockopt",
    "makedev",
    "page_size",
    "poll",
    "pread",
    "pthread_sigmask",
    "readlink",
    "recv",
    "retry_on_intr",
    "set_socket_timeout",
    "sigfillset",
    "statx",
    "sysconf",
    "sysinfo",
    "test_kill_process",
    "wait",
    "wake",
];

/// Calls that change what others see though they are no system calls: memory that is shared, the traits of providers,
/// what the caches hold. By crate.
pub(crate) const CHANGES: &[(&str, &[&str])] = &[
    ("crates/umf-core", &["provider.allocate", "provider.free", "ability.split", "ability.merge"]),
    ("crates/umf-domain", &["sys::close_inherited", "sys::reserve", "bits::set", "bits::clear"]),
    (
        "crates/umf-ipc",
        &[
            "lease.give_back",
            "protocol::mark",
            "protocol::lease_for_all",
            "protocol::give_back_for_all",
            "state.compare_exchange",
            "pin.pin_and_lease",
            "protocol::publish",
            "protocol::retire",
            "sys::close_inherited",
            "ledger.show_door",
            "import.import",
            "import.release",
            "ability.export",
            "ability.unexport",
            "table.insert_unique",
            "value.unlinked",
        ],
    ),
];

/// Functions that change something for their callers, who have the steps.
pub(crate) const PASSED_ON: &[(&str, &str)] = &[
    ("crates/umf-ipc", "sys::memfd"),
    ("crates/umf-ipc", "sys::reserve"),
    ("crates/umf-ipc", "sys::add_seals"),
    ("crates/umf-ipc", "sys::open"),
    ("crates/umf-ipc", "sys::open_path"),
    ("crates/umf-ipc", "sys::reopen"),
    ("crates/umf-ipc", "sys::pidfd_open"),
    ("crates/umf-ipc", "sys::pidfd_getfd"),
    ("crates/umf-ipc", "sys::set_ptracer"),
    ("crates/umf-domain", "Mapping::keep_from_children"),
    ("crates/umf-domain", "Mapping::new"),
    ("crates/umf-domain", "sys::memfd"),
    ("crates/umf-domain", "sys::socket"),
    ("crates/umf-ipc", "sys::peer_pidfd"),
    ("crates/umf-ipc", "sys::populate"),
    ("crates/umf-ipc", "sys::punch"),
    ("crates/umf-ipc", "AddressRange::show"),
    ("crates/umf-ipc", "SharedMapping::at"),
    ("crates/umf-ipc", "SharedMapping::new"),
    ("crates/umf-ipc", "SharedMapping::keep_from_children"),
    ("crates/umf-ipc", "Front::new"),
    ("providers/host", "sys::memfd"),
    ("providers/host", "sys::set_attribute"),
    ("providers/host", "sys::set_size"),
    ("providers/host", "sys::seal"),
    ("providers/host", "sys::create_named"),
    ("providers/host", "sys::unlink_named"),
];

const OWN_MEMORY: &str =
    "private memory for metadata, which goes with the process and which nobody else sees";
const OWN_ADDRESSES: &str = "addresses with nothing in them; what is shown there, and hidden, has steps";
const OWN_STATE: &str = "state of this process alone";

const ASKED: &str = "an fd that is asked about, and closed when the caller has its answer";

/// Functions that change something, and need no step.
pub(crate) const WITHOUT: &[(&str, &str, &str)] = &[
    ("crates/umf-core", "sys::map_metadata", OWN_MEMORY),
    ("crates/umf-core", "sys::wipe_on_fork", OWN_MEMORY),
    ("crates/umf-core", "sys::register_barrier", OWN_STATE),
    ("crates/umf-core", "sys::barrier", OWN_STATE),
    ("crates/umf-core", "Chunks::drop", OWN_MEMORY),
    ("crates/umf-core", "Wiped::drop", OWN_MEMORY),
    ("crates/umf-core", "Chunks::get_or_grow", OWN_MEMORY),
    ("crates/umf-core", "fork::install", OWN_STATE),
    ("crates/umf-core", "fork::stay_loaded", OWN_STATE),
    ("crates/umf-core", "thread::enter", OWN_STATE),
    ("crates/umf-core", "thread::exit_key", OWN_STATE),
    (
        "crates/umf-domain",
        "Table::drop",
        "in a forked child: its own copy of an fd whose file the parent has",
    ),
    ("crates/umf-domain", "sys::is_free", ASKED),
    ("crates/umf-ipc", "AddressRange::aligned", OWN_ADDRESSES),
    ("crates/umf-ipc", "AddressRange::drop", OWN_ADDRESSES),
    ("crates/umf-ipc", "AddressRange::clear", OWN_ADDRESSES),
    ("crates/umf-ipc", "sys::wipe_on_fork", OWN_ADDRESSES),
    ("crates/umf-ipc", "find::look_into", ASKED),
    ("crates/umf-ipc", "find::memfd", ASKED),
    ("crates/umf-ipc", "owner::is_still", ASKED),
    ("crates/umf-ipc", "ProcessIdentity::current", "a pidfd that is asked about and closed at once"),
    ("crates/umf-ipc", "sys::memfd_device", "a file that is asked about and closed at once"),
    ("crates/umf-ipc", "server::refuse", "ends what a stranger sends; `reply` and the accepting have steps"),
    (
        "providers/host",
        "sys::advise",
        "how the kernel keeps memory of this process, whose mapping has a step",
    ),
    ("providers/host", "sys::bind", "as advice: where the kernel keeps it"),
    ("crates/umf-memory", "sys::reserve_addresses", "addresses that are given up at once"),
    ("crates/umf-memory", "sys::read_into", "a file of the kernel's that is asked, and closed at once"),
    ("providers/host", "sys::open_named", "a file that is asked about and closed at once"),
    ("providers/host", "sys::allowed_nodes", "asks, by a call that has no name in libc"),
    ("providers/host", "sys::node_of_page", "asks, by a call that has no name in libc"),
    ("providers/host", "sys::current_node", "asks, by a call that has no name in libc"),
];
