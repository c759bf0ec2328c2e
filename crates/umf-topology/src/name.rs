//! [`SpaceName`]: memory spaces as settings name them.

use std::fmt;
use std::str::FromStr;

use crate::{Attribute, Basis, Choice, Initiator, Result, Topology};

/// A memory space by name: `all`, `highest-capacity`, `highest-bandwidth`, `lowest-latency`; the last two are seen from
/// the processors that this process may run on, or from `@any`, `@cpu3` or `@node1`: `highest-bandwidth@node1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceName {
    /// What its nodes excel in; `None` for all.
    attribute: Option<Attribute>,
    from: Initiator,
}

/// A text that names no memory space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a memory space is {}", SpaceName::EXPECTED)]
pub struct ParseSpaceNameError;

impl SpaceName {
    /// What is valid.
    pub const EXPECTED: &'static str = "all, highest-capacity, highest-bandwidth or lowest-latency, the last two with @any, @cpuN or \
                                        @nodeN behind if they are not to be seen from this process";

    /// All nodes that this process may use.
    pub const ALL: Self = Self { attribute: None, from: Initiator::Process };

    /// Those that excel in `attribute`, seen from `from` (which capacity does not depend on).
    #[must_use]
    pub fn best(attribute: Attribute, from: Initiator) -> Self {
        let from = if attribute == Attribute::Capacity { Initiator::Process } else { from };
        Self { attribute: Some(attribute), from }
    }

    /// The space that it names on a machine, of nodes that this process may use.
    ///
    /// # Errors
    /// As [`Topology::best`].
    pub fn find(&self, topology: &Topology) -> Result<Choice> {
        let all = topology.all();
        match self.attribute {
            Some(attribute) => topology.best(&all, attribute, self.from),
            None => Ok(Choice { space: all, basis: Basis::NothingToChoose }),
        }
    }
}

impl FromStr for SpaceName {
    type Err = ParseSpaceNameError;

    fn from_str(text: &str) -> Result<Self, ParseSpaceNameError> {
        let (name, from) = match text.split_once('@') {
            Some((name, from)) => (name, Some(initiator(from).ok_or(ParseSpaceNameError)?)),
            None => (text, None),
        };
        match (name, from) {
            ("all", None) => Ok(Self::ALL),
            ("highest-capacity", None) => Ok(Self::best(Attribute::Capacity, Initiator::Process)),
            ("highest-bandwidth", from) => Ok(Self::best(Attribute::Bandwidth, from.unwrap_or_default())),
            ("lowest-latency", from) => Ok(Self::best(Attribute::Latency, from.unwrap_or_default())),
            _ => Err(ParseSpaceNameError),
        }
    }
}

fn initiator(text: &str) -> Option<Initiator> {
    let number = |digits: &str| {
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten()
    };
    if text == "any" {
        return Some(Initiator::Any);
    }
    match text.strip_prefix("cpu") {
        Some(cpu) => number(cpu).map(Initiator::Cpu),
        None => number(text.strip_prefix("node")?).map(Initiator::Node),
    }
}

impl fmt::Display for SpaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.attribute {
            None => "all",
            Some(Attribute::Capacity) => "highest-capacity",
            Some(Attribute::Bandwidth) => "highest-bandwidth",
            Some(Attribute::Latency) => "lowest-latency",
        })?;
        match self.from {
            Initiator::Process => Ok(()),
            Initiator::Any => f.write_str("@any"),
            Initiator::Cpu(cpu) => write!(f, "@cpu{cpu}"),
            Initiator::Node(node) => write!(f, "@node{node}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_what_they_show() {
        for text in [
            "all",
            "highest-capacity",
            "highest-bandwidth",
            "highest-bandwidth@any",
            "lowest-latency@cpu12",
            "lowest-latency@node1",
        ] {
            assert_eq!(text.parse::<SpaceName>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "most",
            "all@any",
            "highest-capacity@node1",
            "lowest-latency@",
            "lowest-latency@cpu",
            "lowest-latency@cpu+1",
            "lowest-latency@node4294967296",
            "highest-bandwidth@node1@any",
            "All",
        ] {
            assert_eq!(text.parse::<SpaceName>(), Err(ParseSpaceNameError), "{text}");
        }
    }
}
