//! The configuration of credential providers: `CredentialProviderConfig`. Source: `pkg/credentialprovider/plugin/config.go`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{CredentialProvider, GoDuration};
use crate::document::{self, BYTES_MAX, Fault, Faults, Node, Place};

/// Versions of the configuration.
const CONFIGS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// Versions of what a provider is asked.
const VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];
/// Files of a directory of configurations: more than anybody has, and a bound.
const FILES_MAX: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default, rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(default, rename = "kind")]
    _kind: Option<String>,
    #[serde(default)]
    providers: Option<Vec<WrittenProvider>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenProvider {
    #[serde(default)]
    name: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    match_images: Option<Vec<String>>,
    #[serde(default)]
    default_cache_duration: Option<GoDuration>,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
}

#[derive(Debug, Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Reads the file, or every `.json`, `.yaml` and `.yml` of the directory, of `--image-credential-provider-config`; programs are in
/// `bin_dir`.
///
/// # Errors
/// All that is wrong.
pub(super) fn read(path: &Path, bin_dir: &Path) -> Result<Vec<CredentialProvider>, Faults> {
    let (mut providers, mut faults, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for file in files(path)? {
        let name = file.display().to_string();
        let text =
            fs::read_to_string(&file).map_err(|error| whole(&name, format!("cannot be read: {error}")))?;
        if text.len() > BYTES_MAX {
            return Err(whole(&name, format!("is longer than {BYTES_MAX} bytes")).into());
        }
        for document in document::parse(&name, &text)? {
            let text = |key: &str| document.get(key).and_then(Node::text).unwrap_or_default();
            if text("kind") != "CredentialProviderConfig" || !CONFIGS.contains(&text("apiVersion")) {
                faults.push(document.fault("", "is no CredentialProviderConfig of kubelet.config.k8s.io/v1"));
                continue;
            }
            let written: Written = document::read(&document)?;
            for (index, provider) in written.providers.into_iter().flatten().enumerate() {
                let place = format!("providers[{index}]");
                for (field, why) in wrong(&provider, &names) {
                    faults.push(document.fault(&format!("{place}.{field}"), why));
                }
                names.insert(provider.name.clone());
                providers.push(settings(provider, bin_dir));
            }
        }
    }
    if providers.is_empty() && faults.is_empty() {
        faults.push(whole(&path.display().to_string(), "has no provider".to_owned()));
    }
    Faults(faults).or(providers)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let name = path.display().to_string();
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).map_err(|error| whole(&name, format!("cannot be listed: {error}")))?;
    let is_one = |path: &PathBuf| {
        path.is_file()
            && path.extension().is_some_and(|end| ["json", "yaml", "yml"].iter().any(|one| end == *one))
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_one).collect();
    files.sort();
    if files.len() > FILES_MAX {
        return Err(whole(&name, format!("has more than {FILES_MAX} files")));
    }
    Ok(files)
}

/// `validateCredentialProviderConfig`.
fn wrong(provider: &WrittenProvider, names: &BTreeSet<String>) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let name = &provider.name;
    if name.is_empty() || name.contains(['/', ' ']) || name == "." || name == ".." {
        all.push(("name", format!("`{name}` is not the name of a program")));
    }
    if names.contains(name) {
        all.push(("name", format!("`{name}` is there twice")));
    }
    if !VERSIONS.contains(&provider.api_version.as_str()) {
        let known = VERSIONS.join(", ");
        all.push(("apiVersion", format!("`{}` is not one of {known}", provider.api_version)));
    }
    if provider.match_images.as_ref().is_none_or(Vec::is_empty) {
        all.push(("matchImages", "must name an image".to_owned()));
    }
    if provider.default_cache_duration.is_none() {
        all.push(("defaultCacheDuration", "must be given".to_owned()));
    }
    all
}

fn settings(provider: WrittenProvider, bin_dir: &Path) -> CredentialProvider {
    let env = provider.env.into_iter().flatten().map(|one| (one.name, one.value));
    CredentialProvider {
        command: bin_dir.join(&provider.name).display().to_string(),
        name: provider.name,
        args: provider.args.unwrap_or_default(),
        env: env.collect(),
        version: provider.api_version,
        images: provider.match_images.unwrap_or_default(),
        keep: provider.default_cache_duration.unwrap_or_default().0,
    }
}

fn whole(file: &str, message: String) -> Fault {
    Fault { place: Some(Place { file: file.into(), line: 0 }), field: String::new(), message }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";

    fn of(text: &str) -> Result<Vec<CredentialProvider>, String> {
        let (dir, file) = written(text);
        let prefix = format!("{}/", dir.path().display());
        read(&file, Path::new("/bin")).map_err(|faults| faults.to_string().replace(&prefix, ""))
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        fs::write(&file, text).unwrap();
        (dir, file)
    }

    #[test]
    fn what_clouds_write_is_read() {
        let text = "providers:\n- name: ecr-credential-provider\n  matchImages: ['*.dkr.ecr.*.amazonaws.com']\n  \
                    defaultCacheDuration: 12h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [get-credentials]\n  \
                    env: [{name: AWS_PROFILE, value: x}]\n";
        let expected = CredentialProvider {
            name: "ecr-credential-provider".to_owned(),
            command: "/bin/ecr-credential-provider".to_owned(),
            args: vec!["get-credentials".to_owned()],
            env: vec![("AWS_PROFILE".to_owned(), "x".to_owned())],
            version: VERSIONS[0].to_owned(),
            images: vec!["*.dkr.ecr.*.amazonaws.com".to_owned()],
            keep: Duration::from_secs(12 * 3600),
        };
        assert_eq!(of(&format!("{HEAD}{text}")).unwrap(), [expected]);
        let dir = tempfile::tempdir().unwrap();
        for (name, provider) in [("b.yaml", "second"), ("a.json", "first"), ("c.txt", "none")] {
            let text = text.replace("ecr-credential-provider", provider);
            fs::write(dir.path().join(name), format!("{HEAD}{text}")).unwrap();
        }
        let names: Vec<_> =
            read(dir.path(), Path::new("/bin")).unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn what_the_kubelet_refuses_is_refused() {
        let good = "name: x, matchImages: [x], defaultCacheDuration: 1h, apiVersion: credentialprovider.kubelet.k8s.io/v1";
        for (from, to, why) in [
            ("", "", ""),
            (
                "name: x",
                "name: ../x",
                "config.yaml:4: providers[0].name: `../x` is not the name of a program",
            ),
            ("name: x", "name: '..'", "is not the name of a program"),
            ("matchImages: [x]", "matchImages: []", "providers[0].matchImages: must name an image"),
            ("defaultCacheDuration: 1h, ", "", "providers[0].defaultCacheDuration: must be given"),
            (".io/v1", ".io/v2", "v2` is not one of credentialprovider.kubelet.k8s.io/v1,"),
            ("name: x", "name: x, tokenAttributes: {}", "tokenAttributes: unknown field"),
        ] {
            let answer = of(&format!("{HEAD}providers:\n- {{{}}}\n", good.replace(from, to)));
            assert_eq!(answer.is_ok(), why.is_empty(), "{from} {to}: {answer:?}");
            let refused = answer.err().unwrap_or_default();
            assert!(refused.contains(why), "{from} {to}: {refused}");
        }
        let twice = of(&format!("{HEAD}providers:\n- {{{good}}}\n- {{{good}}}\n")).unwrap_err();
        assert!(twice.contains("providers[1].name: `x` is there twice"), "{twice}");
        assert!(of(HEAD).unwrap_err().contains("has no provider"));
        assert!(of("apiVersion: v1\nkind: Secret\n").unwrap_err().contains("is no CredentialProviderConfig"));
    }
}
