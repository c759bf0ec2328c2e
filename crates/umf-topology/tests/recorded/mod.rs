//! Recorded machines, which tests can change.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use umf_topology::{Recording, Result, Source, Topology};

pub const ONE_NODE: &str = include_str!("../trees/one-node.txt");
pub const HBM: &str = include_str!("../trees/hbm.txt");
pub const MEMORYLESS: &str = include_str!("../trees/memoryless.txt");
pub const FOUR_NODES: &str = include_str!("../trees/four-nodes.txt");
pub const ALL: [(&str, &str); 4] =
    [("one-node", ONE_NODE), ("hbm", HBM), ("memoryless", MEMORYLESS), ("four-nodes", FOUR_NODES)];

/// The files of a machine.
#[derive(Clone, Debug)]
pub struct Tree(pub BTreeMap<String, String>);

impl Tree {
    pub fn new(recording: &str) -> Self {
        let recording = Recording::new(recording);
        Self(recording.files().map(|(path, text)| (path.to_owned(), text.to_owned())).collect())
    }

    pub fn with(mut self, path: &str, text: &str) -> Self {
        self.0.insert(path.to_owned(), text.to_owned());
        self
    }

    pub fn without(mut self, part: &str) -> Self {
        self.0.retain(|path, _| !path.contains(part));
        self
    }

    fn recording(&self) -> String {
        let lines = |(path, text): (&String, &String)| {
            if text.trim().is_empty() {
                return format!("{path}\n");
            }
            text.lines().map(|line| format!("{path}:{line}\n")).collect()
        };
        self.0.iter().map(lines).collect()
    }

    /// Reads the topology from a recording.
    pub fn recorded(&self) -> Result<Topology> {
        Topology::read(&Source::recording(Recording::new(&self.recording())))
    }

    pub fn write(&self, root: &Path) {
        for (path, text) in &self.0 {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a file lies in a folder"))
                .expect("a folder for temporary files");
            fs::write(path, text).expect("a file for temporary files");
        }
    }

    /// Reads the topology from files.
    pub fn read(&self) -> Result<Topology> {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        self.write(folder.path());
        Topology::read(&Source::folder(folder.path()))
    }
}
