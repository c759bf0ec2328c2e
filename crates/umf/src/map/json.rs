//! [`PoolMap`] as a JSON document.

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Value, json};
use umf_core::Address;
use umf_core::map::{ClassMap, Piece, PieceState, PoolMap, RegionMap, SizeTotals};

/// The version of the JSON format. Format 1 had no quarantined blocks and no size classes.
const FORMAT: u32 = 2;

/// The reason why a text is not the map of a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The text is not JSON, or not a document of this form.
    #[error("not the map of a pool: {0}; pass a document that umf::map::to_json wrote")]
    Document(#[from] serde_json::Error),
    /// The document has a format that this version does not read.
    #[error(
        "cannot read the map of a pool: it has format {found}, and this version reads up to {FORMAT}; use the umf that wrote it"
    )]
    Format {
        /// The format of the document.
        found: u32,
    },
    /// A piece is empty, lies outside of its region, or overlaps the piece before it.
    #[error(
        "not the map of a pool: piece {piece} of region {region} is empty, outside of the region or overlaps the piece before it; pass a document that umf::map::to_json wrote"
    )]
    Piece {
        /// The index of the region.
        region: usize,
        /// The index of the piece in the region.
        piece: usize,
    },
}

/// The parts of a document that [`from_json`] reads.
#[derive(Deserialize)]
struct Document {
    format: u32,
    pool: String,
    #[serde(default)]
    peak_reserved_bytes: u64,
    #[serde(default)]
    classes: Vec<Class>,
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct Class {
    block_size: u64,
    slabs: u64,
    waste_bytes: u64,
    requested_bytes: u64,
}

#[derive(Deserialize)]
struct Region {
    base: u64,
    size: u64,
    /// Offset, block size, number of blocks, name of the state.
    pieces: Vec<(u64, u64, u64, String)>,
}

const STATES: [(PieceState, &str); 5] = [
    (PieceState::Live, "live"),
    (PieceState::Held, "held"),
    (PieceState::Quarantined, "quarantined"),
    (PieceState::Cached, "cached"),
    (PieceState::Free, "free"),
];

/// Returns the map as a JSON document.
///
/// It has `format`, `pool`, `peak_reserved_bytes`, `totals` (bytes, fragmentation, blocks by size),
/// `classes` (slabs and wasted bytes by size), and `regions` with `base`, `size` and `pieces`. A
/// piece is `[offset, block size, blocks, "live" | "held" | "quarantined" | "cached" | "free"]`.
///
/// # Examples
/// ```
/// let map = umf::Pool::private()?.map()?;
/// // The command `umf pool-map` draws such a document.
/// let text = umf::map::to_json(&map);
/// assert_eq!(umf::map::from_json(&text)?, map);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn to_json(map: &PoolMap) -> String {
    let totals = map.totals();
    let piece = |piece: &Piece| {
        let state = STATES.iter().find(|(state, _)| *state == piece.state).map_or("free", |(_, name)| name);
        json!([piece.offset, piece.block_size, piece.count, state])
    };
    let region = |region: &RegionMap| {
        let pieces: Vec<Value> = region.pieces.iter().map(piece).collect();
        json!({ "base": region.base.to_bits(), "size": region.size, "pieces": pieces })
    };
    let size = |size: &SizeTotals| {
        json!({
            "block_size": size.block_size,
            "live": size.live,
            "held": size.held,
            "quarantined": size.quarantined,
            "cached": size.cached,
            "slabs": size.slabs,
            "waste_bytes": size.waste,
            "requested_bytes": size.requested,
        })
    };
    let class = |class: &ClassMap| {
        json!({
            "block_size": class.block_size,
            "slabs": class.slabs,
            "waste_bytes": class.waste,
            "requested_bytes": class.requested,
        })
    };
    json!({
        "format": FORMAT,
        "pool": map.pool,
        "peak_reserved_bytes": map.peak_reserved,
        "totals": {
            "reserved_bytes": totals.reserved,
            "live_bytes": totals.live,
            "requested_bytes": totals.requested,
            "held_bytes": totals.held,
            "quarantined_bytes": totals.quarantined,
            "cached_bytes": totals.cached,
            "free_bytes": totals.free,
            "unusable_bytes": totals.unusable,
            "largest_free_bytes": totals.largest_free,
            "external_fragmentation": totals.external_fragmentation(),
            "internal_fragmentation": totals.internal_fragmentation(),
            "sizes": totals.sizes.iter().map(size).collect::<Vec<_>>(),
        },
        "classes": map.classes.iter().map(class).collect::<Vec<_>>(),
        "regions": map.regions.iter().map(region).collect::<Vec<_>>(),
    })
    .to_string()
}

/// Reads a document of [`to_json`]. The text may come from an untrusted source.
///
/// # Errors
/// [`MapError`] if the text is malformed, or if a piece lies outside of its region or overlaps
/// another.
pub fn from_json(text: &str) -> Result<PoolMap, MapError> {
    let document: Document = serde_json::from_str(text)?;
    if !(1..=FORMAT).contains(&document.format) {
        return Err(MapError::Format { found: document.format });
    }
    let mut regions = Vec::with_capacity(document.regions.len());
    for (region, Region { base, size, pieces }) in document.regions.into_iter().enumerate() {
        let mut checked = Vec::with_capacity(pieces.len());
        let mut end = 0;
        for (piece, (offset, block_size, count, state)) in pieces.into_iter().enumerate() {
            let bytes = block_size.checked_mul(count);
            let piece_end = bytes.and_then(|bytes| offset.checked_add(bytes));
            match piece_end
                .filter(|&piece_end| offset >= end && piece_end <= size && block_size != 0 && count != 0)
            {
                Some(piece_end) => end = piece_end,
                None => return Err(MapError::Piece { region, piece }),
            }
            let state = STATES.iter().find(|(_, name)| *name == state).map(|(state, _)| *state);
            let unknown = || serde_json::Error::custom("unknown state of a piece");
            let state = state.ok_or_else(unknown)?;
            checked.push(Piece { offset, block_size, count, state });
        }
        regions.push(RegionMap { base: Address::from_bits(base), size, pieces: checked });
    }
    let class = |class: Class| ClassMap {
        block_size: class.block_size,
        slabs: class.slabs,
        waste: class.waste_bytes,
        requested: class.requested_bytes,
    };
    let classes = document.classes.into_iter().map(class).collect();
    Ok(PoolMap { pool: document.pool, peak_reserved: document.peak_reserved_bytes, regions, classes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_json_rejects_malformed_maps() {
        let with = |pieces: &str| {
            format!(r#"{{"format":1,"pool":"p","regions":[{{"base":0,"size":100,"pieces":[{pieces}]}}]}}"#)
        };
        assert!(from_json(&with(r#"[0,10,10,"live"]"#)).is_ok());
        for wrong in [
            r#"[0,10,11,"live"]"#,
            r#"[18446744073709551615,10,11,"live"]"#,
            r#"[0,18446744073709551615,2,"live"]"#,
            r#"[0,0,1,"live"]"#,
            r#"[50,10,1,"free"],[55,10,1,"free"]"#,
        ] {
            assert!(matches!(from_json(&with(wrong)), Err(MapError::Piece { .. })), "{wrong}");
        }
        assert!(matches!(from_json(&with(r#"[0,10,1,"gone"]"#)), Err(MapError::Document(_))));
        assert!(matches!(from_json("{}"), Err(MapError::Document(_))));
        for found in [0, 3] {
            let other = format!(r#"{{"format":{found},"pool":"p","regions":[]}}"#);
            assert!(
                matches!(from_json(&other), Err(MapError::Format { found: reported }) if reported == found)
            );
        }
    }
}
