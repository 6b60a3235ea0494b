//! Limits of this process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the number of open files to what the node allows, and says how many: a full node has several connections per pod,
/// and an agent that runs out of descriptors can ask nobody anything.
///
/// Programs that the agent runs inherit it. Those written in Go, as plugins and OCI runtimes are, raise it themselves.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_open_files() -> std::io::Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_as_the_node_allows() {
        let allowed = raise_open_files().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(limit.current.unwrap_or(u64::MAX), allowed);
    }
}
