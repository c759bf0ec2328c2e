//! One source of values, and the merging of several.

use config::{Config, ConfigError, Map, Source, Value, ValueKind};

use crate::{Error, Origin};

/// Keys and values of one source.
pub(crate) type Tree = Map<String, Value>;

/// What one source says. Its values carry the number of the layer, so that after merging each one
/// still tells where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) origin: Origin,
    pub(crate) tree: Tree,
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.tree.clone())
    }
}

/// Layers, weakest first.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    layers: Vec<Layer>,
}

impl Layers {
    /// The mark that values of the next layer carry.
    pub(crate) fn next_uri(&self) -> String {
        self.layers.len().to_string()
    }

    /// Puts a layer on top. Its keys have been checked: the merging crate takes the first level of
    /// keys for path expressions, and would obey `a[1000000000]`.
    pub(crate) fn push(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    /// The layers, weakest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter()
    }

    /// All layers as one: tables are merged, everything else is replaced.
    pub(crate) fn merge(&self) -> Result<Tree, Error> {
        let mut builder = Config::builder();
        for layer in &self.layers {
            builder = builder.add_source(layer.clone());
        }
        let merged = builder.build().and_then(|config| config.collect());
        merged.map_err(|error| Error::Merge { reason: error.to_string() })
    }

    /// Where a merged value came from; of a merged table, the strongest source of anything in it.
    pub(crate) fn origin(&self, value: &Value) -> Origin {
        let layer = strongest(value).and_then(|index| self.layers.get(index));
        layer.map_or(Origin::Default, |layer| layer.origin.clone())
    }
}

fn strongest(value: &Value) -> Option<usize> {
    let own = value.origin().and_then(|uri| uri.parse().ok());
    match &value.kind {
        ValueKind::Table(table) => table.values().filter_map(strongest).chain(own).max(),
        _ => own,
    }
}

/// Puts `value` under `path`, making the tables on the way.
pub(crate) fn nest(path: &[&str], value: Value) -> Tree {
    let mut tree = Tree::new();
    if let Some((first, rest)) = path.split_first() {
        let value =
            if rest.is_empty() { value } else { Value::new(None, ValueKind::Table(nest(rest, value))) };
        tree.insert((*first).to_owned(), value);
    }
    tree
}
