//! What components and agent logged in a lab whose body failed or left something behind.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context, Result};

use super::World;
use crate::files;
use crate::process::tail;
use crate::vm;

const KEPT: &str = "BERTH_TEST_LOGS";

impl World {
    /// Shows the ends of logs. Whole ones are kept in a guest, whose files are gone with it, and where `BERTH_TEST_LOGS` names a
    /// directory for them.
    ///
    /// # Errors
    /// They cannot be read, or not be copied.
    #[expect(clippy::print_stderr, reason = "part of what a failed test says")]
    pub fn show_logs(&self) -> Result<()> {
        let kept = vm::logs()
            .or_else(|| env::var_os(KEPT).map(PathBuf::from))
            .map(|dir| dir.join(env::args().nth(1).unwrap_or_default()));
        for log in self.logs()? {
            eprintln!("\n--- {}\n{}", log.display(), tail(&log));
            if let (Some(kept), Some(name)) = (&kept, log.file_name()) {
                files::make_dir(kept)?;
                fs::copy(&log, kept.join(name)).with_context(|| format!("keep {}", log.display()))?;
            }
        }
        Ok(())
    }

    fn logs(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.root.clone()];
        while let Some(dir) = dirs.pop() {
            for path in files::list(&dir)? {
                // One level: what is below belongs to pods.
                if path.is_dir() && path.parent() == Some(&self.root) {
                    dirs.push(path);
                } else if path.extension().is_some_and(|extension| extension == "log") {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }
}
