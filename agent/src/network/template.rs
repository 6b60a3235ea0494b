//! The network configuration that is made from a template once the node has ranges of addresses for pods.
//!
//! Source: containerd, `internal/cri/server/update_runtime_config.go`, which the kubelet asks for it (`updatePodCIDR` of
//! `pkg/kubelet/kubelet_network.go`).

use std::{
    fs, io,
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use berth_core::derived::conf_template::{TemplateError, render};

use super::{Network, NetworkError, READ_WITHIN};
use crate::causes::with_causes;

/// Its name: that of containerd's, so that a node that changes to Berth and back has one of it.
const FILE: &str = "10-containerd-net.conflist";

/// The largest template that is read, bytes.
const TEMPLATE_MAX: u64 = 1 << 20;

/// Why no configuration was made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A file or directory cannot be used.
    #[error("{act} {path}")]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The template is none that somebody wrote.
    #[error("read template {0}: it has more than {TEMPLATE_MAX} bytes")]
    TooLarge(PathBuf),
    /// The template says something that is not understood.
    #[error("use template {path}")]
    Template {
        /// The template.
        path: PathBuf,
        /// What is wrong with it.
        source: TemplateError,
    },
}

impl Network {
    /// Makes a configuration for the node's ranges where a template is named. Whether there is one now. Why not is told when it is not what
    /// kept it from being made the last time, which `failed` has.
    pub(super) async fn make_conf(&self, cidrs: &[String], failed: &mut Option<String>) -> bool {
        let Some(template) = self.0.plugins.conf_template().filter(|_| !cidrs.is_empty()) else {
            return false;
        };
        let (dir, cidrs) = (self.0.plugins.conf_dir(), cidrs.to_vec());
        let unanswered = NetworkError::Unanswered(dir.clone());
        let made = self.0.reading.run(READ_WITHIN, move || make(&template, &dir, &cidrs)).await;
        let made = made.map_err(|_elapsed| unanswered).and_then(|made| Ok(made?));
        let why = match &made {
            Ok(file) => {
                tracing::info!(file = %file.display(), "network configuration made from its template");
                None
            }
            Err(error) => Some(with_causes(error)),
        };
        if let Some(error) = why.as_ref().filter(|why| failed.as_ref() != Some(why)) {
            tracing::error!(error, "no network configuration is made");
        }
        *failed = why;
        made.is_ok()
    }
}

/// Writes the configuration, whole or not at all.
fn make(template: &Path, dir: &Path, cidrs: &[String]) -> Result<PathBuf, MakeError> {
    let failed = |act, path: &Path| {
        let path = path.to_owned();
        move |source| MakeError::Io { act, path, source }
    };
    let mut text = String::new();
    let file = fs::File::open(template).map_err(failed("open template", template))?;
    file.take(TEMPLATE_MAX + 1).read_to_string(&mut text).map_err(failed("read template", template))?;
    if text.len() as u64 > TEMPLATE_MAX {
        return Err(MakeError::TooLarge(template.to_owned()));
    }
    let conf =
        render(&text, cidrs).map_err(|source| MakeError::Template { path: template.to_owned(), source })?;
    fs::create_dir_all(dir).map_err(failed("make directory", dir))?;
    let path = dir.join(FILE);
    // No configuration by its name, until it is whole.
    let half = dir.join(format!(".{FILE}.new"));
    let write = || {
        let mut open = fs::OpenOptions::new();
        let mut file = open.write(true).create(true).truncate(true).mode(0o644).open(&half)?;
        file.write_all(conf.as_bytes())?;
        fs::rename(&half, &path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&half))).map_err(failed("write", &path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use berth_cni::NetworkList;

    use super::*;

    const TEMPLATE: &str = r#"{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "ptp", "ipam": {
        "type": "host-local", "ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}],
        "routes": [{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}]}}]}"#;

    #[test]
    fn a_template_becomes_the_configuration_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let (template, conf_dir) = (dir.path().join("template"), dir.path().join("etc/net.d"));
        let cidrs = ["10.1.2.0/24".to_owned()];
        let missing = make(&template, &conf_dir, &cidrs).unwrap_err();
        assert!(missing.to_string().starts_with("open template"), "{missing}");
        fs::write(&template, "{{.Nothing}}").unwrap();
        let wrong = with_causes(&make(&template, &conf_dir, &cidrs).unwrap_err());
        assert!(wrong.contains(".Nothing"), "{wrong}");
        fs::write(&template, format!("{TEMPLATE}{}", " ".repeat(1 << 20))).unwrap();
        assert!(
            matches!(make(&template, &conf_dir, &cidrs), Err(MakeError::TooLarge(_))),
            "cut off it would do"
        );
        assert!(!conf_dir.exists(), "nothing was begun");
        fs::write(&template, TEMPLATE).unwrap();
        let file = make(&template, &conf_dir, &cidrs).unwrap();
        assert_eq!(file, conf_dir.join(FILE));
        let list = NetworkList::load(&conf_dir).unwrap();
        assert_eq!(list.name.as_str(), "pods");
        assert!(fs::read_to_string(&file).unwrap().contains(r#"[{"subnet": "10.1.2.0/24"}]"#));
        assert_eq!(fs::read_dir(&conf_dir).unwrap().count(), 1, "nothing half is left");
    }
}
