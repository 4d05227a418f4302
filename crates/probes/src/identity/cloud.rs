//! Cloud, image, zone and instance, from the files of cloud-init, the firmware and the kubelet's configuration.

use serde_json::Value;

use super::hardware::dmi;
use crate::root::Root;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cloud {
    pub name: Option<String>,
    pub image_id: Option<String>,
    pub zone: Option<String>,
    pub instance_type: Option<String>,
    pub instance_id: Option<String>,
}

impl Cloud {
    /// Takes missing values from `other`.
    fn fill(&mut self, other: Cloud) {
        let pairs = [
            (&mut self.name, other.name),
            (&mut self.image_id, other.image_id),
            (&mut self.zone, other.zone),
            (&mut self.instance_type, other.instance_type),
            (&mut self.instance_id, other.instance_id),
        ];
        for (mine, theirs) in pairs {
            if mine.is_none() {
                *mine = theirs;
            }
        }
    }
}

/// `files` are the node's own, if accessible.
pub(super) fn find(root: &Root, files: Option<&Root>) -> Cloud {
    let mut cloud = Cloud::default();
    if let Some(files) = files {
        if let Ok(text) = files.read("/run/cloud-init/instance-data.json") {
            cloud.fill(from_instance_data(&text));
        }
        let name = files.read_line("/run/cloud-init/cloud-id").and_then(|name| cloud_name(&name));
        cloud.fill(Cloud { name, ..Cloud::default() });
    }
    cloud.fill(from_dmi(root));
    if let Some(files) = files {
        cloud.fill(from_kubelet(files));
        let path = match cloud.name.as_deref() {
            // Written by Google's guest agents; by older ones in /etc.
            Some("gce") => {
                ["/var/lib/google/instance_id", "/etc/google_instance_id"].iter().find_map(|p| files.read_line(p))
            }
            // Only if cloud-init ran in this boot: an image made from a running machine contains that machine's id.
            _ if files.path("/run/cloud-init").is_dir() => files.read_line("/var/lib/cloud/data/instance-id"),
            _ => None,
        };
        cloud.fill(Cloud { instance_id: path.filter(|id| is_instance_id(id)), ..Cloud::default() });
    }
    cloud
}

/// From cloud-init's names; `None` for data sources that are not a cloud.
fn cloud_name(name: &str) -> Option<String> {
    let name = name.trim().to_ascii_lowercase();
    let not_clouds = ["", "none", "unknown", "nocloud", "configdrive", "ovf", "fallback", "lxd", "wsl"];
    match name.as_str() {
        _ if not_clouds.contains(&name.as_str()) => None,
        "ec2" | "aws-china" | "aws-gov" => Some("aws".to_owned()),
        "azure-china" => Some("azure".to_owned()),
        _ => Some(name),
    }
}

/// cloud-init invents an id if its data source has none.
fn is_instance_id(id: &str) -> bool {
    !id.starts_with("iid-") && !id.starts_with("nocloud")
}

/// /run/cloud-init/instance-data.json, the world-readable part. `v1` has the same keys on every cloud; `ds` comes from the cloud's
/// own metadata service.
fn from_instance_data(text: &str) -> Cloud {
    let Ok(data) = serde_json::from_str::<Value>(text) else { return Cloud::default() };
    let v1 = &data["v1"];
    let meta = first(&data["ds"], &["meta_data", "meta-data"]);
    let identity = first(&data["ds"]["dynamic"], &["instance_identity", "instance-identity"]);
    let document = &identity["document"];
    let azure = &meta["imds"]["compute"];
    // Keys have hyphens before cloud-init 19 and on Alibaba.
    let v1_text = |key: &str| text_of(&v1[key]).or_else(|| text_of(&v1[key.replace('_', "-")]));
    let meta_text = |key: &str| text_of(&meta[key]).or_else(|| text_of(&meta[key.replace('_', "-")]));
    let zone = if azure.is_object() {
        // On Azure cloud-init's availability_zone is the fault domain, not the zone.
        azure_zone(azure)
    } else {
        v1_text("availability_zone")
            .or_else(|| text_of(&first(&meta["placement"], &["availability_zone", "availability-zone"])))
            .or_else(|| text_of(&document["availabilityZone"]))
    };
    Cloud {
        name: v1_text("cloud_name").as_deref().and_then(cloud_name),
        image_id: meta_text("ami_id")
            .or_else(|| meta_text("image_id"))
            .or_else(|| text_of(&document["imageId"]))
            .or_else(|| azure_image(azure)),
        zone,
        instance_type: meta_text("instance_type")
            .or_else(|| text_of(&document["instanceType"]))
            .or_else(|| text_of(&azure["vmSize"]))
            .or_else(|| text_of(&meta["instance"]["instance-type"])),
        instance_id: v1_text("instance_id").filter(|id| is_instance_id(id)),
    }
}

fn first(object: &Value, keys: &[&str]) -> Value {
    keys.iter().find_map(|key| object.get(key)).cloned().unwrap_or_default()
}

/// A meaningful text: not empty, redacted by cloud-init, or a spelled-out null.
fn text_of(value: &Value) -> Option<String> {
    const LONGEST: usize = 512;
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let nothing = ["", "None", "null", "unknown", "redacted for non-root user"];
    (text.len() <= LONGEST && !nothing.contains(&text.as_str())).then_some(text)
}

/// As Kubernetes writes it: `eastus-2`.
fn azure_zone(compute: &Value) -> Option<String> {
    let zone = text_of(&compute["zone"])?;
    Some(match text_of(&compute["location"]) {
        Some(location) => format!("{location}-{zone}"),
        None => zone,
    })
}

/// The image's own id, or publisher:offer:sku:version.
fn azure_image(compute: &Value) -> Option<String> {
    let reference = &compute["storageProfile"]["imageReference"];
    if let Some(id) = text_of(&reference["id"]) {
        return Some(id);
    }
    let part = |key: &str| text_of(&reference[key]).or_else(|| text_of(&compute[key]));
    let (publisher, offer, sku) = (part("publisher")?, part("offer")?, part("sku")?);
    let version = part("version").unwrap_or_else(|| "unknown".to_owned());
    Some(format!("{publisher}:{offer}:{sku}:{version}"))
}

/// From the firmware, with the checks of cloud-init's ds-identify.
fn from_dmi(root: &Root) -> Cloud {
    /// Azure's fixed tag: "MSFT AZURE VM" in decimal ASCII codes.
    const AZURE_TAG: &str = "7783-7084-3265-9085-8269-3286-77";
    let vendor = dmi(root, "sys_vendor").unwrap_or_default();
    let product = dmi(root, "product_name").unwrap_or_default();
    let tag = dmi(root, "chassis_asset_tag").unwrap_or_default();
    let bios = dmi(root, "bios_version").unwrap_or_default();
    if vendor == "Amazon EC2" {
        // Nitro: the product is the instance type, the board's tag the instance.
        return Cloud {
            name: Some("aws".to_owned()),
            instance_type: Some(product).filter(|p| p.contains('.')),
            instance_id: dmi(root, "board_asset_tag").filter(|tag| tag.starts_with("i-")),
            ..Cloud::default()
        };
    }
    let xen_of_amazon = || root.read_line("/sys/hypervisor/uuid").is_some_and(|uuid| uuid.starts_with("ec2"));
    let name = if bios.ends_with("amazon") || xen_of_amazon() {
        "aws"
    } else if product == "Google Compute Engine" || product == "Google" {
        "gce"
    } else if tag == AZURE_TAG {
        "azure"
    } else if tag == "OracleCloud.com" {
        "oracle"
    } else if product == "Alibaba Cloud ECS" {
        "aliyun"
    } else if product.starts_with("OpenStack") || tag.starts_with("OpenStack") {
        "openstack"
    } else {
        match vendor.as_str() {
            "DigitalOcean" => "digitalocean",
            "Hetzner" => "hetzner",
            "Vultr" => "vultr",
            "Scaleway" => "scaleway",
            "Akamai" | "Linode" => "akamai",
            "UpCloud" => "upcloud",
            "Exoscale" => "exoscale",
            _ => return Cloud::default(),
        }
    };
    Cloud { name: Some(name.to_owned()), ..Cloud::default() }
}

/// `providerID` in the kubelet's configuration, which EKS images write at every boot.
fn from_kubelet(files: &Root) -> Cloud {
    let paths = ["/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet/kubelet-config.json"];
    let id = paths.iter().find_map(|path| {
        let config = serde_json::from_str::<Value>(&files.read(path).ok()?).ok()?;
        text_of(&config["providerID"])
    });
    id.map(|id| from_provider_id(&id)).unwrap_or_default()
}

/// `aws:///us-west-2a/i-0123456789abcdef0`, `gce://project/us-central1-a/name`.
fn from_provider_id(id: &str) -> Cloud {
    let Some((provider, path)) = id.split_once("://") else { return Cloud::default() };
    let mut parts = path.split('/').skip(1);
    let (zone, instance) = (parts.next(), parts.next());
    let owned = |text: Option<&str>| text.filter(|t| !t.is_empty()).map(str::to_owned);
    match provider {
        "aws" => Cloud {
            name: Some("aws".to_owned()),
            zone: owned(zone),
            instance_id: owned(instance.filter(|i| i.starts_with("i-"))),
            ..Cloud::default()
        },
        "gce" => Cloud { name: Some("gce".to_owned()), zone: owned(zone), ..Cloud::default() },
        _ => Cloud::default(),
    }
}

#[cfg(test)]
mod tests;
