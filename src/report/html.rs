//! HTML: one page that needs nothing else, no network and no script.

use std::io::{self, Write};

use super::grid::{Fact, Grid, level, spans};
use super::layout::{Row, RowKind};
use super::parts::more_facts;
use super::table::{kinds_text, no_rows, notes, shape_cell, verified_text};
use super::text_table::{Column, Look, Side};
use super::{Document, Render, SumReport, run};
use crate::text::escape;
use crate::units::grouped;

/// One self-contained page for all files.
#[derive(Debug, Clone, Copy)]
pub struct Html;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--dim:#777;--bar:#4a90d9}\
body{font:14px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.25rem;margin:2rem 0 0;overflow-wrap:anywhere}h2{font-size:1.1rem}p{margin:.25rem 0 1rem}.dim{color:var(--dim)}\
table{border-collapse:collapse;margin:1rem 0;width:100%}th,td{text-align:left;padding:.2rem .6rem;\
border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600}.n{text-align:right;\
font-variant-numeric:tabular-nums;white-space:nowrap}td.name{font-family:ui-monospace,monospace;overflow-wrap:anywhere}\
tr.module td{font-weight:600}.bar{display:flex;height:.8rem;border-radius:.4rem;overflow:hidden;background:var(--line)}\
.bar i{display:block}.clean{color:#2a8a3a}.suspicious,.warning{color:#b07000}.dangerous,.error{color:#c02020}\
code{font-family:ui-monospace,monospace;overflow-wrap:anywhere}table.facts th{width:6rem}";

/// Colours of the file's parts, in the order of [`super::ClassBytes::parts`].
const COLORS: [&str; 9] = [
    "#4a90d9", "#7ab648", "#e0a030", "#9a6fc0", "#a05030", "#d05050", "#50a8a0", "#888888",
    "#bbbbbb",
];

impl Render for Html {
    fn begin(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>inspect</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n"
        )
    }

    fn document(
        &self,
        document: &Document<'_>,
        _first: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let report = &document.report;
        writeln!(out, "<section>\n<h1>{}</h1>", html(&report.file.path))?;
        writeln!(
            out,
            "<p class=\"dim\">{} {}, {} ({} bytes)</p>",
            report.file.format,
            report.file.object,
            document.units.bytes(report.file.bytes),
            grouped(report.file.bytes)
        )?;
        if let Some(signature) = &document.signature {
            writeln!(out, "<p><code>{}</code></p>", html(signature))?;
        }
        parts(document, out)?;
        let programs = super::program::facts(document.checkpoint.programs());
        if !programs.is_empty() {
            facts(&programs, out)?;
        }
        totals(document, out)?;
        security(document, out)?;
        match (&report.run, &document.run) {
            (Some(run), Some(view)) => {
                writeln!(out, "<h2>Run</h2>")?;
                facts(&run::facts(run, document.units), out)?;
                for table in run::grids(view, document) {
                    grid(&table, out)?;
                }
            }
            _ => rows(document, out)?,
        }
        if let Some(estimate) = report.estimate {
            writeln!(out, "<h2>GPU memory</h2>")?;
            facts(&super::estimate::facts(estimate, document.units), out)?;
            for table in super::estimate::grids(estimate, document.units) {
                grid(&table, out)?;
            }
        }
        writeln!(out, "</section>")
    }

    fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "</body>\n</html>")
    }
}

fn parts(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let whole = document.report.file.bytes.max(1) as f64;
    let class = document.report.totals.by_class.parts();
    write!(out, "<div class=\"bar\">")?;
    for ((name, bytes), color) in class.iter().zip(COLORS) {
        let share = 100.0 * *bytes as f64 / whole;
        write!(
            out,
            "<i style=\"width:{share:.3}%;background:{color}\" title=\"{name}\"></i>"
        )?;
    }
    writeln!(out, "</div>\n<p>")?;
    for ((name, bytes), color) in class.iter().zip(COLORS) {
        if *bytes > 0 {
            let size = document.units.bytes(*bytes);
            let kinds = match *name {
                "optimizer" => {
                    let kinds = &document.report.totals.optimizer_by_kind;
                    html(&kinds_text(kinds, document.units))
                }
                _ => String::new(),
            };
            writeln!(
                out,
                "<span style=\"color:{color}\">&#9632;</span> {name} {size}{kinds} &ensp;"
            )?;
        }
    }
    writeln!(out, "</p>")
}

fn totals(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let totals = &document.report.totals;
    let units = document.units;
    writeln!(
        out,
        "<table>\n<tr><th>Totals</th><th class=\"n\">Tensors</th><th class=\"n\">Elements</th><th class=\"n\">Bytes</th></tr>"
    )?;
    let all = SumReport {
        tensors: totals.sums.tensors,
        numel: totals.sums.numel,
        bytes: totals.sums.tensor_bytes,
    };
    let groups = totals.by_role.iter().chain(&totals.by_dtype);
    for (name, sum) in groups.copied().chain([("all", all)]) {
        writeln!(
            out,
            "<tr><td>{name}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            grouped(sum.tensors),
            grouped(sum.numel),
            units.bytes(sum.bytes)
        )?;
    }
    writeln!(out, "</table>")?;
    writeln!(
        out,
        "<p>{} in memory, every storage once; {} shared; {} slack</p>",
        units.bytes(totals.sums.storage_bytes),
        units.bytes(totals.sums.shared_bytes),
        units.bytes(totals.sums.slack_bytes)
    )?;
    if let Some(cast) = document.cast {
        writeln!(
            out,
            "<p>{} as {}</p>",
            units.bytes(cast.storage_bytes),
            cast.dtype.name()
        )?;
    }
    for (name, text) in more_facts(&document.report, units) {
        writeln!(out, "<p>{name}: {}</p>", html(&text))?;
    }
    if let Some(verified) = document.report.verified {
        let text = verified_text(verified, units);
        writeln!(out, "<p>Verified: {}</p>", html(&text))?;
    }
    Ok(())
}

fn security(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let report = &document.report;
    let verdict = report.security.verdict;
    write!(
        out,
        "<p>Security: <strong class=\"{verdict}\">{verdict}</strong>"
    )?;
    for global in report.security.unexpected_globals {
        write!(out, " <code>{}</code>", html(global))?;
    }
    writeln!(out, "</p>")?;
    if report.findings.is_empty() {
        return Ok(());
    }
    writeln!(out, "<ul>")?;
    for finding in &report.findings {
        writeln!(
            out,
            "<li><span class=\"{0}\">{0}</span> {1} <code>{2}</code> <span class=\"dim\">{3}</span></li>",
            finding.severity,
            html(&finding.message),
            html(&finding.location),
            finding.code
        )?;
    }
    writeln!(out, "</ul>")
}

fn grid(grid: &Grid, out: &mut dyn Write) -> io::Result<()> {
    let columns = grid.filled();
    let class = |column: &Column| match column.side {
        Side::Left => "",
        Side::Right => " class=\"n\"",
    };
    write!(out, "<table>\n<tr>")?;
    for (_, column) in &columns {
        write!(out, "<th{}>{}</th>", class(column), html(column.title))?;
    }
    writeln!(out, "</tr>")?;
    for row in &grid.rows {
        write!(out, "<tr>")?;
        for (index, column) in &columns {
            let Some(found) = row.get(*index) else {
                continue;
            };
            let text = match found.look {
                Look::Strong => format!("<b>{}</b>", html(&found.text)),
                Look::Dim => format!("<span class=\"dim\">{}</span>", html(&found.text)),
                _ => html(&found.text),
            };
            match level(found) {
                0 => write!(out, "<td{}>{text}</td>", class(column))?,
                level => write!(out, "<td style=\"{}\">{text}</td>", indent(level))?,
            }
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table>")?;
    for note in &grid.notes {
        writeln!(out, "<p class=\"dim\">{}</p>", prose(note))?;
    }
    Ok(())
}

/// Where a row of a tree begins.
fn indent(level: usize) -> String {
    format!("padding-left:{:.1}rem", 0.6 + level as f64 * 1.2)
}

fn facts(facts: &[Fact], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<table class=\"facts\">")?;
    for fact in facts {
        let class = match fact.look {
            Look::Dim => " class=\"dim\"",
            Look::Good => " class=\"clean\"",
            Look::Warn => " class=\"warning\"",
            Look::Bad => " class=\"error\"",
            Look::Plain | Look::Strong => "",
        };
        writeln!(
            out,
            "<tr><th>{}</th><td{class}>{}</td></tr>",
            html(fact.name),
            prose(&fact.text)
        )?;
    }
    writeln!(out, "</table>")
}

/// A text whose code is marked as such.
fn prose(text: &str) -> String {
    spans(text)
        .map(|(is_code, part)| {
            if is_code {
                format!("<code>{}</code>", html(part))
            } else {
                html(part)
            }
        })
        .collect()
}

fn rows(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let view = &document.view;
    if view.rows.is_empty() {
        return writeln!(out, "<p>{}</p>", no_rows(view));
    }
    let cast = document.cast.map(|cast| cast.dtype.name());
    write!(
        out,
        "<table>\n<tr><th>Name</th><th>Class</th><th>Role</th><th>Shape</th><th>Dtype</th><th class=\"n\">Elements</th><th class=\"n\">Bytes</th>"
    )?;
    if let Some(name) = cast {
        write!(out, "<th class=\"n\">{name}</th>")?;
    }
    writeln!(out, "</tr>")?;
    for row in &view.rows {
        line(row, view.tree, document, out)?;
    }
    writeln!(out, "</table>")?;
    for note in notes(view) {
        writeln!(out, "<p class=\"dim\">{}</p>", html(&note))?;
    }
    Ok(())
}

fn line(row: &Row, tree: bool, document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (name, at) = if tree {
        (&row.label, row.level)
    } else {
        (&row.path, 0)
    };
    let class = match row.kind {
        RowKind::Module => " class=\"module\"",
        RowKind::Tensor => "",
    };
    let repeats = if row.repeats > 1 {
        format!(" x{}", row.repeats)
    } else {
        String::new()
    };
    write!(
        out,
        "<tr{class}><td class=\"name\" style=\"{}\" title=\"{}\">{}{repeats}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        indent(at),
        html(&row.path),
        html(name),
        html(row.class.as_deref().unwrap_or_default()),
        row.role.unwrap_or_default(),
        html(&shape_cell(row)),
        row.dtype.unwrap_or_default(),
    )?;
    let unknown = || "unknown".to_owned();
    let size = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| document.units.bytes(bytes));
    write!(
        out,
        "<td class=\"n\">{}</td><td class=\"n\">{}</td>",
        row.numel.map_or_else(unknown, grouped),
        size(row.bytes)
    )?;
    if document.cast.is_some() {
        write!(out, "<td class=\"n\">{}</td>", size(row.cast_bytes))?;
    }
    writeln!(out, "</tr>")
}

/// Text of the file as text of the page.
fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in escape(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::html;

    #[test]
    fn text_stays_text() {
        assert_eq!(
            html("<img src=x onerror='a' & \"b\">\n"),
            "&lt;img src=x onerror=&#39;a&#39; &amp; &quot;b&quot;&gt;\\n"
        );
    }
}
