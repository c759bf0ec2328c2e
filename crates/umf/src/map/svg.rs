//! [`PoolMap`] as an SVG picture.

use std::fmt::Write;

use umf_core::map::{PieceState, PoolMap, RegionMap};

/// Cells per line.
const CELLS: u64 = 256;
/// Size of a cell in the picture's units.
const WIDTH: u64 = 4;
const HEIGHT: u64 = 10;
/// Limit of the lines of all regions. For larger pools a cell stands for more bytes.
const LINES: u64 = 1024;
/// The fewest bytes that a cell stands for.
const SMALLEST_CELL: u64 = 256;
/// Limit of the regions that are drawn. The picture states how many it leaves out.
const REGIONS: usize = 512;

const MARGIN: u64 = 12;
const CAPTION: u64 = 16;

const STATES: [(PieceState, &str, &str); 5] = [
    (PieceState::Live, "live", "#2b6cb0"),
    (PieceState::Held, "held", "#c05621"),
    (PieceState::Quarantined, "quarantined", "#805ad5"),
    (PieceState::Cached, "cached", "#90cdf4"),
    (PieceState::Free, "free", "#e2e8f0"),
];
const UNUSABLE: &str = "#718096";

/// Returns a picture of the regions, one below the other. Each cell has the colour of the state
/// that most of its bytes have. The picture's size is bounded, whatever the size of the pool.
#[must_use]
pub fn to_svg(map: &PoolMap) -> String {
    let totals = map.totals();
    let drawn = &map.regions[..map.regions.len().min(REGIONS)];
    let cell = cell_size(drawn);
    let mut body = String::new();
    let mut y = MARGIN + 3 * CAPTION;
    for region in drawn {
        text(&mut body, y, &format!("region at {:?}, {}", region.base, bytes(region.size)));
        y += CAPTION / 2;
        y = draw(&mut body, region, cell, y) + CAPTION;
    }
    if drawn.len() < map.regions.len() {
        text(&mut body, y, &format!("and {} more regions", map.regions.len() - drawn.len()));
        y += CAPTION;
    }
    let (width, height) = (CELLS * WIDTH + 2 * MARGIN, y + MARGIN);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let summary = format!(
        "pool {}: {} reserved, {} live, {} held, {} quarantined, {} cached, {} free (largest {}), fragmentation {:.2} outside and \
         {:.2} inside of blocks; a cell is {}",
        escaped(&map.pool),
        bytes(totals.reserved),
        bytes(totals.live),
        bytes(totals.held),
        bytes(totals.quarantined),
        bytes(totals.cached),
        bytes(totals.free),
        bytes(totals.largest_free),
        totals.external_fragmentation(),
        totals.internal_fragmentation(),
        bytes(cell),
    );
    text(&mut picture, MARGIN + CAPTION / 2, &summary);
    let mut x = MARGIN;
    let legend = STATES.iter().map(|&(_, name, colour)| (name, colour)).chain([("unusable", UNUSABLE)]);
    for (name, colour) in legend {
        let y = MARGIN + CAPTION;
        let _ = writeln!(picture, "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(picture, "<text x=\"{}\" y=\"{}\">{name}</text>", x + 14, y + 9);
        x += 90;
    }
    picture + &body + "</svg>\n"
}

/// Returns the bytes per cell: the smallest power of two with which all regions fit into [`LINES`].
fn cell_size(regions: &[RegionMap]) -> u64 {
    let lines = |cell: u64| {
        let of = |region: &RegionMap| region.size.div_ceil(cell.saturating_mul(CELLS));
        regions.iter().map(of).fold(0, u64::saturating_add)
    };
    let mut cell = SMALLEST_CELL;
    while lines(cell) > LINES.max(regions.len() as u64) && cell < 1 << 62 {
        cell *= 2;
    }
    cell
}

/// Draws a region from `y` on, and returns the `y` of its end.
fn draw(body: &mut String, region: &RegionMap, cell: u64, y: u64) -> u64 {
    let cells = region.size.div_ceil(cell);
    let colours = colours(region, cell, cells);
    let mut begin = 0;
    while begin < cells {
        // One rectangle per run of cells of one colour in a line.
        let colour = colours(begin);
        let line_end = (begin / CELLS + 1) * CELLS;
        let end = (begin + 1..line_end.min(cells)).find(|&cell| colours(cell) != colour);
        let end = end.unwrap_or(line_end.min(cells));
        let _ = writeln!(
            body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"/>",
            MARGIN + begin % CELLS * WIDTH,
            y + begin / CELLS * HEIGHT,
            (end - begin) * WIDTH,
            HEIGHT - 1,
        );
        begin = end;
    }
    y + cells.div_ceil(CELLS) * HEIGHT
}

/// Returns a function from a cell to the colour of the state that most of its bytes have.
fn colours(region: &RegionMap, cell: u64, cells: u64) -> impl Fn(u64) -> &'static str {
    let mut shares = vec![[0_u64; STATES.len()]; usize::try_from(cells).unwrap_or(0)];
    for piece in &region.pieces {
        let Some(state) = STATES.iter().position(|&(state, ..)| state == piece.state) else { continue };
        let end = piece.offset.saturating_add(piece.size()).min(region.size);
        let mut at = piece.offset;
        while at < end {
            let next = (at / cell + 1).saturating_mul(cell).min(end);
            if let Some(share) = usize::try_from(at / cell).ok().and_then(|cell| shares.get_mut(cell)) {
                share[state] = share[state].saturating_add(next - at);
            }
            at = next;
        }
    }
    let size = region.size;
    move |index| {
        let known = usize::try_from(index).ok().and_then(|index| shares.get(index));
        let share = known.copied().unwrap_or_default();
        let all = cell.min(size.saturating_sub(index.saturating_mul(cell)));
        let unusable = all.saturating_sub(share.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)));
        let most = (0..STATES.len()).max_by_key(|&state| (share[state], STATES.len() - state));
        most.filter(|&state| share[state] >= unusable).map_or(UNUSABLE, |state| STATES[state].2)
    }
}

fn text(body: &mut String, y: u64, text: &str) {
    let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{y}\">{text}</text>");
}

/// Escapes a pool's name for XML: it may contain any character.
fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // XML cannot represent control characters.
            letter if letter.is_control() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umf_core::Address;
    use umf_core::map::Piece;

    fn region(size: u64, pieces: Vec<Piece>) -> RegionMap {
        RegionMap { base: Address::from_bits(1 << 30), size, pieces }
    }

    #[test]
    fn cell_has_the_colour_of_its_most_common_state() {
        let piece = |offset, block_size, state| Piece { offset, block_size, count: 1, state };
        let pieces = vec![piece(0, 300, PieceState::Live), piece(300, 212, PieceState::Free)];
        let region = region(1000, pieces);
        let colours = colours(&region, 256, 4);
        assert_eq!([0, 1, 2, 3].map(colours), [STATES[0].2, STATES[4].2, UNUSABLE, UNUSABLE]);
    }

    #[test]
    fn picture_size_is_bounded() {
        let whole = Piece { offset: 0, block_size: 1 << 46, count: 1, state: PieceState::Live };
        let regions = vec![region(1 << 46, vec![whole])];
        let mut map = PoolMap { pool: "<p> & \u{1}".to_owned(), regions, ..PoolMap::default() };
        for _ in 0..1000 {
            map.regions.push(region(4096, Vec::new()));
        }
        let picture = to_svg(&map);
        assert!(picture.len() < 1 << 20, "{}", picture.len());
        assert!(
            picture.contains("pool &lt;p&gt; &amp; \u{fffd}:") && picture.contains("and 489 more regions")
        );
    }
}
