//! [`SpaceName`]: the names of memory spaces in settings.

use std::fmt;
use std::str::FromStr;

use crate::{Attribute, Basis, Choice, Initiator, Result, Topology};

/// The name of a memory space: `all`, `highest-capacity`, `highest-bandwidth` or `lowest-latency`.
/// The last two are seen from the processors that this process may run on, or from `@any`, `@cpu3`
/// or `@node1`: `highest-bandwidth@node1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceName {
    /// The attribute of which the space has the best nodes; `None` for all nodes.
    attribute: Option<Attribute>,
    from: Initiator,
}

/// The text is not the name of a memory space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a memory space; use {}", SpaceName::EXPECTED)]
pub struct ParseSpaceNameError;

impl SpaceName {
    /// The valid names, in words.
    pub const EXPECTED: &'static str = "all, highest-capacity, highest-bandwidth or lowest-latency, the last two optionally followed by \
                                        @any, @cpuN or @nodeN";

    /// All nodes that this process may use.
    pub const ALL: Self = Self { attribute: None, from: Initiator::Process };

    /// Returns the nodes with the best `attribute`, seen from `from`. Capacity does not depend on
    /// `from`.
    #[must_use]
    pub fn best(attribute: Attribute, from: Initiator) -> Self {
        let from = if attribute == Attribute::Capacity { Initiator::Process } else { from };
        Self { attribute: Some(attribute), from }
    }

    /// Returns the space of this name on a machine. It has only nodes that this process may use.
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
        let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        is_digits.then(|| digits.parse().ok()).flatten()
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
    fn display_of_a_name_parses_to_it() {
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
