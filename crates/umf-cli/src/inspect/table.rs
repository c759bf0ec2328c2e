//! Tables that fit into a width: whole columns are left out, and names are shortened.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

/// The characters between two columns.
const GAP: usize = 2;
/// The fewest characters of a name for which another column is left out.
const MIN_NAME: usize = 12;

/// A column of a table.
pub(super) struct Heading {
    pub(super) text: &'static str,
    pub(super) kind: ColumnKind,
    /// The column with the highest rank is left out first. Columns of rank 0 stay.
    pub(super) rank: u8,
}

/// The contents of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// Right-aligned.
    Number,
    /// Left-aligned.
    Text,
    /// Left-aligned. It has the width that the other columns leave. One per table.
    Name,
}

/// A row: its cells, and the styles of the row and of single cells.
pub(super) struct TableRow {
    pub(super) cells: Vec<String>,
    pub(super) style: Style,
    pub(super) cell_styles: Vec<(usize, Style)>,
}

/// Returns the columns that fit into `width`, and their widths.
fn fit(headings: &[Heading], rows: &[TableRow], width: usize) -> Vec<(usize, usize)> {
    let natural = |column: usize| {
        let cells = rows.iter().map(|row| row.cells[column].chars().count());
        cells.max().unwrap_or(0).max(headings[column].text.len())
    };
    let mut columns: Vec<(usize, usize)> =
        (0..headings.len()).map(|column| (column, natural(column))).collect();
    let is_name = |column: usize| headings[column].kind == ColumnKind::Name;
    loop {
        let needed =
            columns.iter().map(|&(column, width)| if is_name(column) { width.min(MIN_NAME) } else { width });
        let needed = needed.sum::<usize>() + GAP * columns.len().saturating_sub(1);
        let last = columns.iter().enumerate().max_by_key(|(_, (column, _))| headings[*column].rank);
        match last {
            Some((index, &(column, _))) if needed > width && headings[column].rank > 0 => {
                columns.remove(index);
            }
            _ => break,
        }
    }
    let others = columns.iter().filter(|(column, _)| !is_name(*column)).map(|(_, width)| width);
    let left = width.saturating_sub(others.sum::<usize>() + GAP * columns.len().saturating_sub(1));
    for (column, width) in &mut columns {
        if is_name(*column) {
            *width = (*width).min(left);
        }
    }
    columns
}

/// Returns whether [`draw`] shows a column in a table of this width.
pub(super) fn is_shown(headings: &[Heading], rows: &[TableRow], width: u16, text: &str) -> bool {
    fit(headings, rows, width.into()).iter().any(|&(column, _)| headings[column].text == text)
}

/// Returns the text, or its beginning and an ellipsis if it is longer than `width`.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Draws `rows[first..]`, as many as fit. The widths are those for all rows, so that scrolling
/// does not change them.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, headings: &[Heading], rows: &[TableRow], first: usize) {
    let columns = fit(headings, rows, area.width.into());
    let cell = |column: usize, width: usize, text: &str| match headings[column].kind {
        ColumnKind::Number => Cell::new(Line::raw(text.to_owned()).right_aligned()),
        ColumnKind::Text => Cell::new(text.to_owned()),
        ColumnKind::Name => Cell::new(shortened(text, width)),
    };
    let heading = columns.iter().map(|&(column, width)| cell(column, width, headings[column].text));
    let heading = Row::new(heading).style(Style::new().add_modifier(Modifier::BOLD));
    let visible = rows.iter().skip(first).map(|row| {
        let cells = columns.iter().map(|&(column, width)| {
            let style = row.cell_styles.iter().find(|(styled, _)| *styled == column).map(|(_, style)| *style);
            cell(column, width, &row.cells[column]).style(style.unwrap_or_default())
        });
        Row::new(cells).style(row.style)
    });
    let widths = columns.iter().map(|&(_, width)| Constraint::Length(width.try_into().unwrap_or(u16::MAX)));
    frame.render_widget(Table::new(visible, widths).header(heading).column_spacing(GAP as u16), area);
}
