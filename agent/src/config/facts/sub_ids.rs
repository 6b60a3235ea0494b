//! Ids of the node that an administrator has set aside for pods: those of the user `kubelet` in `subuid(5)` and `subgid(5)`.
//!
//! They count where a kubelet would ask for them: where there is that user, and `getsubids`, which comes with the tools that set ids aside.
//! `useradd` writes a line for each user it makes, which says nothing about pods by itself.
//!
//! Source: `getKubeletMappings` and `parseGetSubIdsOutput` of `pkg/kubelet/kubelet_pods.go`.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::{FactsError, text_or_empty};

const USER: &str = "kubelet";
const USERS: &str = "/etc/passwd";
const TOOL: &str = "getsubids";
const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// The first id and how many; none where nothing is set aside.
pub(super) fn sub_ids() -> Result<Option<(u32, u32)>, FactsError> {
    let users = text_or_empty(Path::new(USERS))?;
    let Some(uid) = uid(&users).filter(|_| has_tool(env::var_os("PATH").as_deref())) else {
        return Ok(None);
    };
    let [users, groups] = FILES.map(|file| of_file(Path::new(file), uid));
    match (users?, groups?) {
        (users, groups) if users == groups => Ok(users),
        _ => Err(FactsError::SubIds {
            path: PathBuf::from(FILES[1]),
            why: "its ids are not those of /etc/subuid",
        }),
    }
}

/// The number of the user, where there is it.
fn uid(users: &str) -> Option<&str> {
    users.lines().map(|line| line.split(':')).find_map(|mut parts| {
        let is_it = parts.next() == Some(USER);
        parts.nth(1).filter(|uid| is_it && !uid.is_empty())
    })
}

fn has_tool(path: Option<&OsStr>) -> bool {
    path.is_some_and(|path| env::split_paths(path).any(|dir| dir.join(TOOL).is_file()))
}

fn of_file(path: &Path, uid: &str) -> Result<Option<(u32, u32)>, FactsError> {
    let text = text_or_empty(path)?;
    parse(&text, uid).map_err(|why| FactsError::SubIds { path: path.to_owned(), why })
}

/// The user is there by name or by number.
fn parse(text: &str, uid: &str) -> Result<Option<(u32, u32)>, &'static str> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let mut lines = lines.filter(|(owner, _)| *owner == USER || *owner == uid).map(|(_, rest)| {
        let (first, count) = rest.split_once(':')?;
        Some((first.parse().ok()?, count.parse().ok()?))
    });
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(Some(ids)), None) => Ok(Some(ids)),
        (Some(None), None) => Err("its line is not `kubelet:<first id>:<number of ids>`"),
        (Some(_), Some(_)) => Err("it has more than one line"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_where_there_is_the_user_and_the_tool() {
        for (users, expected) in [
            ("", None),
            ("root:x:0:0::/root:/bin/sh\nkubelet:x:999:998::/:/bin/false\n", Some("999")),
            ("kubelet", None),
            ("kubelet:x::", None),
            ("kubelets:x:1:1:::\n", None),
            ("a:x:1:1:kubelet:/kubelet:kubelet\n", None),
        ] {
            assert_eq!(uid(users), expected, "{users}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = env::join_paths([Path::new("/absent"), dir.path()]).unwrap();
        assert!(!has_tool(None) && !has_tool(Some(&path)));
        std::fs::write(dir.path().join(TOOL), "").unwrap();
        assert!(has_tool(Some(&path)));
    }

    #[test]
    fn the_line_of_the_kubelet_is_read_where_there_is_one() {
        for (text, expected) in [
            ("", Ok(None)),
            ("root:100000:65536\nkubelets:1:2\n", Ok(None)),
            ("root:1:2\nkubelet:65536:7208960\n", Ok(Some((65_536, 7_208_960)))),
            (" kubelet:65536:7208960", Ok(Some((65_536, 7_208_960)))),
            ("99:1:2\n999:65536:7208960", Ok(Some((65_536, 7_208_960)))),
            ("999:1:2\nkubelet:3:4", Err("it has more than one line")),
            ("kubelet:65536", Err("its line is not `kubelet:<first id>:<number of ids>`")),
            ("kubelet:-1:5", Err("its line is not `kubelet:<first id>:<number of ids>`")),
            ("kubelet:4294967296:5", Err("its line is not `kubelet:<first id>:<number of ids>`")),
            ("kubelet:1:2\nkubelet:3:4", Err("it has more than one line")),
        ] {
            assert_eq!(parse(text, "999"), expected, "{text}");
        }
    }
}
