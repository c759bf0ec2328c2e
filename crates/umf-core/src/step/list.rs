//! [`Step`]: the list.

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A point at which a process can be killed. A test kills one at each, and fails if it cannot get there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name, as `UMF_STEP` has it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

impl Step {
    /// The step of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|step| step.name() == name)
    }
}

impl core::fmt::Display for Step {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

steps! {
    // umf-core: forks.
    /// Before a fork: all locks are taken.
    ForkPrepared,
    /// After a fork, in the parent.
    ForkReturned,
    /// After a fork, in the child, which has all locks of its parent.
    ForkChildBegun,
    /// After a fork, in the child: what was the parent's is forgotten, and the locks are free.
    ForkChildReady,

    // umf-core: regions on their way between a provider and its user.
    /// A region came from its provider; nothing finds it yet.
    UpstreamAllocated,
    /// A region can be found by its addresses.
    UpstreamTracked,
    /// The exports of a region are retired; it is still tracked.
    UpstreamRetired,
    /// A region is not tracked any more; its provider still has to take it back.
    UpstreamRemoved,
    /// The provider has taken a region back.
    UpstreamFreed,
    /// A region was split by its provider; the tracker knows the whole alone.
    UpstreamSplit,
    /// Regions were merged by their provider; the tracker knows the parts alone.
    UpstreamMerged,
    /// Whoever exported memory knows that it goes; the memory is still there.
    ObserversTold,

    // The host provider.
    /// A memory file was made: empty, and not sealed.
    HostFileMade,
    /// A memory file has its size and its seals.
    HostFileSealed,
    /// A named file was made, and has no size.
    HostNameMade,
    /// A name was taken away.
    HostNameTakenAway,
    /// A range of a memory file was set aside for a region.
    HostRangeTaken,
    /// A range of a memory file can be used again.
    HostRangeGiven,
    /// Private memory was mapped.
    HostMapped,
    /// A range of a memory file was mapped: one's own, or another process's.
    HostFileMapped,
    /// Memory was unmapped.
    HostUnmapped,
    /// Pages of a memory file were made.
    HostCommitted,
    /// Pages of a memory file were given back.
    HostPunched,

    // The slab pool, where threads meet.
    /// A region can be used by the pool.
    PoolRegionEntered,
    /// A region is not used by the pool any more, and not given back yet.
    PoolRegionTakenOut,
    /// A slab can be used.
    PoolSlabMade,
    /// A slab was taken apart.
    PoolSlabRemoved,
    /// Blocks went from a thread's cache to what all threads share.
    PoolBlocksGiven,
    /// The exports of a pool that is dropped are retired; its regions are still there.
    PoolClosing,

    // umf-ipc: the ledger.
    /// The file was made.
    LedgerFileMade,
    /// The file is mapped, and not sealed yet.
    LedgerMapped,
    /// The file is sealed, and holds nothing yet.
    LedgerSealed,
    /// The ledger says whose it is.
    LedgerMade,
    /// There are pages for more slots.
    LedgerGrown,
    /// A slot was taken that was never used.
    LedgerSlotTaken,
    /// Some of a slot's words are those of a new export, and some are not.
    LedgerHalfPublished,
    /// An export is visible.
    LedgerPublished,
    /// An export is about to be retired.
    LedgerRetiring,
    /// An export was retired.
    LedgerRetired,
    /// A slot can be used again.
    LedgerSlotGivenBack,
    /// Another process's ledger is mapped, and not checked yet.
    LedgerOpened,
    /// A ledger, one's own or another's, was unmapped.
    LedgerUnmapped,

    // umf-ipc: how fds travel.
    /// An importer has looked for the producer, and has its pidfd.
    ProducerFound,
    /// An fd came by `pidfd_getfd`.
    FetchedByPidfd,
    /// A file was found through `/proc`, and not opened.
    FoundInProcfs,
    /// An fd came through `/proc`.
    FetchedByProcfs,
    /// Connected to a producer's socket, whose owner is not known yet.
    SocketConnecting,
    /// Connected to the producer; nothing is asked yet.
    SocketConnected,
    /// The producer was asked.
    SocketAsked,
    /// The producer has answered.
    SocketAnswered,
    /// A producer's socket has its name.
    ServerBound,
    /// A producer's socket takes connections.
    ServerListening,
    /// The thread that answers was started.
    ServerStarted,
    /// A connection was accepted.
    ServerAccepted,
    /// A request was read, and not answered.
    ServerAnswering,
    /// A request was answered.
    ServerAnswered,
    /// A connection was closed.
    ServerClosed,
    /// The thread that answers was told to end.
    ServerEnding,
    /// A forked child has closed one of the fds that served its parent's socket.
    ServerAbandoned,

    // umf-ipc: the caches of both sides.
    /// An entry can be found.
    CacheInserted,
    /// An entry is about to leave.
    CacheUnlinking,
    /// An entry has left, and its value is not dropped yet.
    CacheUnlinked,

    // umf-ipc: the exporter.
    /// It was said who may attach to this process.
    ExporterPermitted,
    /// A provider has exported a region; the ledger does not have it yet.
    ExportMade,
    /// An export is visible and its handle is about to be handed out.
    ExportReady,
    /// A provider has its export back.
    ExportReturned,
    /// A forked child has closed its parent's ledger.
    ExporterAbandoned,

    // umf-ipc: the importer.
    /// The fd of a region came, and is not mapped.
    ImportFetched,
    /// A region is mapped, and not in the cache.
    ImportMapped,
    /// A handle is open.
    ImportOpened,
    /// A region was unmapped.
    ImportReleased,
}
