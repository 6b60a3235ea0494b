//! Volumes that show content: `configMap`, `secret`, `downwardAPI`, `projected`.
//!
//! Source: `pkg/apis/core/validation/validation.go` `validateProjectionSources` and those around it,
//! `pkg/apis/core/v1/defaults.go`.

use std::collections::BTreeSet;

use berth_core::spec::{
    ContentKind, ContentVolume, DownwardFile, DownwardSource, KeyToPath, ObjectFiles, ObjectKind, Projection,
    TokenFile,
};
use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath as ApiKeyToPath, ServiceAccountTokenProjection, Volume as ApiVolume,
    VolumeProjection,
};

use super::{container::resource_field, is_dns_subdomain, notes::Notes};

/// Mode of files when nothing is said.
const MODE: u32 = 0o644;

/// Seconds that a token is to live when nothing is said, and the bounds.
const TOKEN_SECONDS: i64 = 3600;
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

/// Fields of the pod that a file can show.
const FIELDS: [&str; 5] =
    ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];

/// Whether a volume needs nothing but the pod itself.
pub(super) fn is_of_pod(volume: &ApiVolume) -> bool {
    let of_pod = |source: &VolumeProjection| {
        *source
            == VolumeProjection { downward_api: source.downward_api.clone(), ..VolumeProjection::default() }
    };
    let projected = volume.projected.as_ref();
    volume.downward_api.is_some()
        || projected.is_some_and(|projected| projected.sources.iter().flatten().all(of_pod))
}

/// One of them; `None` when the volume is of another kind.
pub(super) fn convert(notes: &mut Notes<'_>, field: &str, volume: &ApiVolume) -> Option<ContentVolume> {
    let at = |name: &str| format!("{field}.{name}");
    let (kind, mode, field, sources) = if let Some(written) = &volume.config_map {
        let field = at("configMap");
        let (items, optional) = (written.items.as_ref(), written.optional);
        let source = object(notes, &field, ObjectKind::ConfigMap, &written.name, items, optional);
        (ContentKind::ConfigMap, written.default_mode, field, vec![source])
    } else if let Some(written) = &volume.secret {
        let field = at("secret");
        let name = written.secret_name.as_deref().unwrap_or_default();
        let (items, optional) = (written.items.as_ref(), written.optional);
        let source = object(notes, &field, ObjectKind::Secret, name, items, optional);
        (ContentKind::Secret, written.default_mode, field, vec![source])
    } else if let Some(written) = &volume.downward_api {
        let field = at("downwardAPI");
        let source = downward(notes, &field, written.items.as_ref());
        (ContentKind::DownwardApi, written.default_mode, field, vec![source])
    } else {
        let written = volume.projected.as_ref()?;
        let field = at("projected");
        let all = written.sources.iter().flatten().enumerate();
        let sources = all
            .filter_map(|(index, source)| projection(notes, &format!("{field}.sources[{index}]"), source))
            .collect();
        (ContentKind::Projected, written.default_mode, field, sources)
    };
    let default_mode = self::mode(notes, &format!("{field}.defaultMode"), mode).unwrap_or(MODE);
    // Of the others upstream has the later one seen.
    if kind == ContentKind::Projected {
        check_paths(notes, &field, &sources);
    }
    Some(ContentVolume { kind, default_mode, sources })
}

fn projection(notes: &mut Notes<'_>, field: &str, written: &VolumeProjection) -> Option<Projection> {
    let at = |name: &str| format!("{field}.{name}");
    let mut found = Vec::new();
    if let Some(map) = &written.config_map {
        let field = at("configMap");
        found.push(object(notes, &field, ObjectKind::ConfigMap, &map.name, map.items.as_ref(), map.optional));
    }
    if let Some(secret) = &written.secret {
        let (field, items) = (at("secret"), secret.items.as_ref());
        found.push(object(notes, &field, ObjectKind::Secret, &secret.name, items, secret.optional));
    }
    if let Some(api) = &written.downward_api {
        found.push(downward(notes, &at("downwardAPI"), api.items.as_ref()));
    }
    if let Some(token) = &written.service_account_token {
        found.push(self::token(notes, &at("serviceAccountToken"), token));
    }
    for (name, there) in [
        ("clusterTrustBundle", written.cluster_trust_bundle.is_some()),
        ("podCertificate", written.pod_certificate.is_some()),
    ] {
        if there {
            notes.fault(&at(name), "is not supported by this version");
            return None;
        }
    }
    if found.len() > 1 {
        notes.fault(field, "must have one source");
    }
    found.into_iter().next()
}

fn object(
    notes: &mut Notes<'_>,
    field: &str,
    kind: ObjectKind,
    name: &str,
    items: Option<&Vec<ApiKeyToPath>>,
    optional: Option<bool>,
) -> Projection {
    if !is_dns_subdomain(name) {
        let key =
            if field.ends_with(".secret") && !field.contains(".sources[") { "secretName" } else { "name" };
        notes.fault(&format!("{field}.{key}"), format!("`{name}` is not the name of an object"));
    }
    let items = items.into_iter().flatten().enumerate();
    let items = items.map(|(index, item)| {
        let field = format!("{field}.items[{index}]");
        if item.key.is_empty() {
            notes.fault(&format!("{field}.key"), "is missing");
        }
        let path = path(notes, &format!("{field}.path"), &item.path);
        KeyToPath { key: item.key.clone(), path, mode: mode(notes, &format!("{field}.mode"), item.mode) }
    });
    let items = items.collect();
    Projection::Object(ObjectFiles { kind, name: name.to_owned(), items, optional: optional == Some(true) })
}

fn downward(notes: &mut Notes<'_>, field: &str, items: Option<&Vec<DownwardAPIVolumeFile>>) -> Projection {
    let items = items.into_iter().flatten().enumerate();
    let file = |(index, item)| downward_file(notes, &format!("{field}.items[{index}]"), item);
    Projection::Downward(items.filter_map(file).collect())
}

fn downward_file(
    notes: &mut Notes<'_>,
    field: &str,
    written: &DownwardAPIVolumeFile,
) -> Option<DownwardFile> {
    let source = match (&written.field_ref, &written.resource_field_ref) {
        (Some(selector), None) => {
            let path = selector.field_path.as_str();
            let of_map = |map: &str| {
                path.strip_prefix(map).is_some_and(|rest| rest.ends_with("']") && rest.len() > "']".len())
            };
            let subscript = of_map("metadata.labels['") || of_map("metadata.annotations['");
            if !subscript && !FIELDS.contains(&path) {
                notes.fault(
                    &format!("{field}.fieldRef.fieldPath"),
                    format!("`{path}` is not a field that a file can show"),
                );
            }
            DownwardSource::Field(path.to_owned())
        }
        (None, Some(selector)) => {
            let field = format!("{field}.resourceFieldRef");
            let selector = resource_field(notes, &field, selector);
            if selector.container.is_none() {
                notes.fault(&format!("{field}.containerName"), "is missing");
            }
            DownwardSource::Resource(selector)
        }
        (None, None) | (Some(_), Some(_)) => {
            notes.fault(field, "must have exactly one of `fieldRef` and `resourceFieldRef`");
            return None;
        }
    };
    let path = path(notes, &format!("{field}.path"), &written.path);
    Some(DownwardFile { path, mode: mode(notes, &format!("{field}.mode"), written.mode), source })
}

fn token(notes: &mut Notes<'_>, field: &str, written: &ServiceAccountTokenProjection) -> Projection {
    let wanted = Some(written.expiration_seconds.unwrap_or(TOKEN_SECONDS));
    let seconds = format!("{field}.expirationSeconds");
    let seconds = notes.number(&seconds, wanted, TOKEN_SECONDS_MIN, TOKEN_SECONDS_MAX);
    Projection::Token(TokenFile {
        path: path(notes, &format!("{field}.path"), &written.path),
        audience: written.audience.clone().filter(|audience| !audience.is_empty()),
        seconds: seconds.unwrap_or(TOKEN_SECONDS),
    })
}

fn mode(notes: &mut Notes<'_>, field: &str, written: Option<i32>) -> Option<u32> {
    notes.number(field, written.map(i64::from), 0, 0o777)
}

/// A path below the volume (`validateLocalNonReservedPath`). Without `.` and repeated slashes, so that equal ones are equal.
fn path(notes: &mut Notes<'_>, field: &str, written: &str) -> String {
    let parts: Vec<&str> = written.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let is_good = !written.starts_with('/')
        && !parts.is_empty()
        && !parts[0].starts_with("..")
        && parts.iter().all(|part| *part != "..")
        && !written.contains('\0');
    if !is_good {
        let message = format!("`{written}` is not a relative path without `..`, also not at its start");
        notes.fault(field, message);
    }
    parts.join("/")
}

/// One path for two files is refused where it is written; keys of objects may still meet, and then the later one is seen.
fn check_paths(notes: &mut Notes<'_>, field: &str, sources: &[Projection]) {
    let mut seen = BTreeSet::new();
    for source in sources {
        let paths: Vec<&str> = match source {
            Projection::Object(files) => files.items.iter().map(|item| item.path.as_str()).collect(),
            Projection::Downward(files) => files.iter().map(|file| file.path.as_str()).collect(),
            Projection::Token(token) => vec![&token.path],
        };
        for path in paths {
            if !path.is_empty() && !seen.insert(path) {
                notes.fault(field, format!("`{path}` is given to two files"));
            }
        }
    }
}
