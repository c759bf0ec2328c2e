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
}
