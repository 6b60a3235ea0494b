//! `berth pods`: a table that fits the terminal.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use jiff::Timestamp;

use super::{age, summary};
use crate::control::{Overview, PodObject};

/// How much the table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columns {
    /// As kubectl, with the address.
    Usual,
    /// With the QoS class and the UID.
    Wide,
}

/// Writes the table, and below it what is wrong with manifests and with containerd's configuration.
pub(super) fn print(
    out: &mut impl Write,
    overview: &Overview,
    columns: Columns,
    width: Option<u16>,
    now: Timestamp,
) -> io::Result<()> {
    if overview.pods.is_empty() {
        writeln!(out, "no pods on this node")?;
    } else {
        let mut header = vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "IP", "AGE"];
        if columns == Columns::Wide {
            header.extend(["QOS", "UID"]);
        }
        let rows = overview.pods.iter().map(|pod| row(pod, columns, now));
        write!(out, "{}", layout(header.into_iter().map(str::to_owned).collect(), rows, width))?;
    }
    for problem in &overview.problems {
        writeln!(out, "\nnot used: {}", problem.place)?;
        for line in problem.message.lines() {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// Columns without lines around them, three blanks apart, no wider than `width`.
pub(super) fn layout(
    header: Vec<String>,
    rows: impl Iterator<Item = Vec<String>>,
    width: Option<u16>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    if !header.is_empty() {
        table.set_header(header);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(object: &PodObject, columns: Columns, now: Timestamp) -> Vec<String> {
    let pod = &object.pod;
    let sum = summary::summarize(pod, now);
    let status = pod.status.as_ref();
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let text = |text: Option<&String>| text.cloned().unwrap_or_else(|| "<none>".to_owned());
    let mut row = vec![
        text(pod.metadata.namespace.as_ref()),
        text(pod.metadata.name.as_ref()),
        sum.ready,
        sum.status,
        sum.restarts,
        text(status.and_then(|status| status.pod_ip.as_ref())),
        age::since(now, created),
    ];
    if columns == Columns::Wide {
        row.push(text(status.and_then(|status| status.qos_class.as_ref())));
        row.push(text(pod.metadata.uid.as_ref()));
    }
    row
}
