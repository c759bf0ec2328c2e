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
    /// Whoever exported memory knows that it goes; the memory is still there.
    ObserversTold,

    // umf-core: freed memory that is open elsewhere.
    /// Freed memory is held, for somebody who has it open.
    HeldKept,
    /// Pages of memory that is held were given back.
    HeldPurged,
    /// Nobody has the memory open any more, and nobody owns it for the moment.
    HeldLeaving,
    /// A pool has a block back that was held.
    HeldBlockReturned,
    /// A provider has a region back that was held.
    HeldRegionReturned,
    /// A region that is held goes on without its pool.
    HeldOrphaned,

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
    FileMapped,
    /// Memory was unmapped.
    Unmapped,
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
    /// The producer holds the lock that says that it lives.
    LedgerLocked,
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

    // umf-ipc: leases, the producer's side.
    /// The lease table's file was made.
    LeaseTableFileMade,
    /// The lease table is mapped, and not sealed yet.
    LeaseTableMapped,
    /// The lease table names its producer.
    LeaseTableMade,
    /// There are pages for the marks of more slots.
    LeaseTableGrown,
    /// The ledger names the lease table.
    LeaseTableNamed,
    /// An export is retired, and its leases were not looked for yet.
    LeaseScanning,
    /// A retired export is kept in the list of deferred ones, because it is leased.
    LeaseDeferred,
    /// The last lease of a retired export is gone, and its slot can be used again.
    LeaseEnded,
    /// A row of an importer is mapped by the producer.
    LeaseRowMapped,
    /// The producer holds the lock of a row whose importer ended.
    DeadRowLocked,
    /// The producer has cleared such a row, and holds its lock.
    DeadRowCleared,
    /// The producer has unlocked such a row.
    DeadRowUnlocked,
    /// A forked child has closed its parent's descriptor of a lease table.
    LeaseTableAbandoned,

    // umf-ipc: leases, the importer's side.
    /// A thread found no rows for a producer, and opens its lease table.
    LeaseTableMissing,
    /// Another process's lease table is mapped, and not checked yet.
    LeaseTableOpened,
    /// The lease table is checked, and other threads do not find it yet.
    LeaseTableChecked,
    /// A forked child has closed its parent's descriptor of another process's lease table.
    LeaseTableForgotten,
    /// A lease table was opened anew, for a row.
    RowOpened,
    /// A row is locked, with what its last owner left in it. A descriptor keeps the lock.
    RowLocked,
    /// A locked row is zero.
    RowCleared,
    /// A locked row is mapped. The mapping keeps the lock.
    RowMapped,
    /// The height of the table includes the row.
    RowRaised,
    /// The descriptor through which a row was mapped is closed.
    RowReady,
    /// Words of a row have memory.
    RowPopulated,
    /// A slot's marks name the row, and nothing is counted yet.
    LeaseMarked,
    /// An open is counted, and the generation was not loaded.
    LeaseCounted,
    /// The same, of a handle that the thread remembers.
    LeaseCountedAgain,
    /// An open turned out to be too late; its lease is still counted.
    LeaseTooLate,
    /// A lease is about to be given back.
    LeaseClosing,
    /// A mapping is closed: neither leased nor pinned.
    LeaseGivenBack,
    /// A row is about to be given back: zero, still locked.
    RowClosing,
    /// A row is neither mapped nor locked.
    RowClosed,

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
    /// The fd of a file came of which a window is to be mapped.
    WindowFetched,
    /// A window is mapped, and not in the cache.
    WindowMapped,
    /// An importer has a ledger of its own.
    BoardPosted,
    /// It has none any more.
    BoardTakenDown,
    /// A forked child has closed its parent's.
    BoardAbandoned,

    // umf-domain.
    /// A name of the domain's is bound, and nobody listens there.
    DomainBound,
    /// A name is bound, and can be connected to.
    DomainListening,
    /// The turn was given back.
    DomainTurnGivenBack,
    /// Connected to whoever has a name, and it is not known who that is.
    DomainKnocked,
    /// A participant was asked.
    DomainAsked,
    /// The file of a table was made.
    DomainTableFileMade,
    /// A table is mapped.
    DomainTableMapped,
    /// A table says whose it is.
    DomainTableMade,
    /// There are pages for more slots.
    DomainTableGrown,
    /// A place has the nonce of a new participant, and is not occupied.
    DomainPlaceNamed,
    /// A place is occupied, and nobody answers there.
    DomainPlaceTaken,
    /// A place's thread answers.
    DomainServed,
    /// One of a dead participant's registrations was ended, of maybe several.
    DomainReclaiming,
    /// A dead participant's place is free.
    DomainReclaimed,
    /// The memory of an object was made.
    DomainRegionMade,
    /// The memory of an object is mapped.
    DomainRegionMapped,
    /// A slot says what the new object is, which nobody is registered for.
    DomainSlotFilled,
    /// The creator is registered for an object that does not exist yet.
    DomainCreatorEntered,
    /// An object exists.
    DomainCreated,
    /// A process is registered.
    DomainRegistered,
    /// A process is not registered any more.
    DomainUnregistered,
    /// An object that nobody was registered for any more does not exist any more.
    DomainDestroyed,
    /// Memory of the domain's was unmapped.
    DomainUnmapped,
    /// A forked child has closed the sockets of its parent.
    DomainAbandoned,

    // umf-link.
    /// An endpoint can be connected to.
    LinkListening,
    /// Connected to an endpoint; nothing was said yet.
    LinkConnected,
    /// A segment was made, and nobody knows of it.
    LinkSegmentMade,
    /// The peer was sent the segment.
    LinkProposed,
    /// A connection was accepted; nothing was said yet.
    LinkAccepted,
    /// A segment that was sent is mapped; its sender does not know that yet.
    LinkSegmentMapped,
    /// The peer was told that the link is there.
    LinkWelcomed,
    /// A link can be used.
    LinkMade,
    /// A message is in a ring.
    LinkSent,
    /// A message was offered.
    LinkOffered,
    /// Memory was handed over.
    LinkLent,
    /// A message was withdrawn.
    LinkWithdrawn,
    /// Bounce buffers were filled.
    LinkFilled,
    /// A part of a message was copied into the receiver's memory.
    LinkPushed,
    /// A handle was told.
    LinkTold,
    /// The sender was told what was consumed.
    LinkConsumed,
    /// The sender was asked to fill bounce buffers.
    LinkBounceAsked,
    /// A bounce buffer was emptied.
    LinkEmptied,
    /// The sender was asked to copy, too.
    LinkPushAsked,
    /// A part of a message was copied out of the sender's memory, and nobody else copies that.
    LinkPulled,
    /// A message was received, and its sender told.
    LinkTaken,
    /// A view was given back.
    LinkGivenBack,
    /// A range of memory is registered.
    LinkRegistered,
    /// A range is not registered any more; the peer may be in it.
    LinkExpired,
    /// This side is in a range of the peer's.
    LinkRangeEntered,
    /// It is not any more.
    LinkRangeLeft,
    /// The peer is asked for a copy in a range.
    LinkAsked,
    /// That was done, and the peer told.
    LinkServed,
    /// This side sleeps next.
    LinkAsleep,
    /// The peer was woken.
    LinkWoken,
    /// An fd for events was made.
    LinkWatched,
    /// The peer is told that the link is closed.
    LinkClosed,
    /// The segment of a link is not mapped any more.
    LinkUnmapped,
    /// The sockets of a link or an endpoint are closed.
    LinkLeft,
    /// A forked child has closed them.
    LinkAbandoned,
}
