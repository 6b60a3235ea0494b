//! `berth reset`: the agent without a source, until nothing of any pod is left.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use tokio_util::sync::CancellationToken;

/// Between two looks at the records.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two words about what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Waits until no pod has a record: it is the last that goes of a pod.
///
/// # Errors
/// The agent was told to stop before, or the records cannot be listed.
pub(super) async fn all_gone(records: &Path, cancel: &CancellationToken) -> Result<()> {
    let mut told = tokio::time::Instant::now();
    loop {
        let left = pods(records).with_context(|| format!("list {}", records.display()))?;
        if left == 0 {
            return Ok(());
        }
        if told.elapsed() >= TELL_EVERY {
            tracing::info!(records = left, "pods are ending");
            told = tokio::time::Instant::now();
        }
        tokio::select! {
            () = cancel.cancelled() => bail!("end all pods: {left} records are left, since it was told to stop; call it again"),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Files of records but those that were put aside, of which nobody is to go on.
fn pods(records: &Path) -> std::io::Result<usize> {
    let files = std::fs::read_dir(records)?.collect::<Result<Vec<_>, _>>()?;
    Ok(files.iter().filter(|file| file.path().extension().is_none_or(|kind| kind != "corrupt")).count())
}
