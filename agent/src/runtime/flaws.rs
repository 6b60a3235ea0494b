//! Tells, when the agent begins, that what containers are run with is known to let them out.

use std::time::Duration;

use berth_core::flaws::{Flaw, Program as Known, flaw};

use super::{Containerd, probe::OciCommand};
use crate::{causes::with_causes, program::Program};

/// How long a program may take to say its version. Nobody waits for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How runc begins what it says of itself.
const RUNC: &str = "runc version ";

/// Looks at both. What does not say its version is passed over: whether it answers is found out by others.
pub async fn tell(containerd: Containerd, oci: OciCommand) {
    match containerd.version().await {
        Ok(version) => warn("containerd", &version, Known::Containerd),
        Err(error) => tracing::debug!(error = with_causes(&error), "containerd does not say its version"),
    }
    let args = vec!["--version".to_owned()];
    let program = Program { command: oci.binary.clone(), args, ..Program::default() };
    match program.run("", ANSWER_WITHIN).await {
        Ok(ended) => {
            if let Some(version) = runc_version(&String::from_utf8_lossy(&ended.output)) {
                warn(&oci.binary, version, Known::Runc);
            }
        }
        Err(error) => {
            tracing::debug!(error = with_causes(&error), "the OCI runtime does not say its version");
        }
    }
}

fn runc_version(said: &str) -> Option<&str> {
    said.lines().next()?.strip_prefix(RUNC)
}

fn warn(program: &str, version: &str, known: Known) {
    let Some(Flaw { known_as, fixed_in }) = flaw(known, version) else { return };
    tracing::warn!(
        program,
        version,
        "containers can get out of what this version runs ({known_as}): install {fixed_in} or later, unless yours has been mended"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runc_says_its_version_first() {
        for (said, expected) in [
            ("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n", Some("1.1.5+ds1")),
            ("crun version 1.8.1\ncommit: f8a096be\n", None),
            ("youki version 0.3.3\nrunc version 1.0.0\n", None),
            ("", None),
        ] {
            assert_eq!(runc_version(said), expected, "{said:?}");
        }
    }
}
