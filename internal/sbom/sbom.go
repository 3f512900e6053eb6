// Package sbom lists what the program and its image are made of, as a CycloneDX
// document: Go modules as the linker recorded them, Python packages as the lock
// files pin them, Debian packages as dpkg has them. Equal inputs give equal
// bytes.
package sbom

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"
)

// Python is a package of a locked environment.
type Python struct {
	Environment string
	Name        string
	Version     string
	Hashes      []string // SHA-256 of the files it may be installed from
}

// Source is what there is to list.
type Source struct {
	Version string           // of the program
	Commit  string           // may be empty
	Build   *debug.BuildInfo // of the program
	Python  []Python
	Image   fs.FS // root of the image; nil lists no Debian packages
}

// Write returns the document.
func Write(s Source) ([]byte, error) {
	root := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: "trtship", Version: s.Version,
		PackageURL: golang("github.com/trtship/trtship", s.Version),
	}
	root.BOMRef = root.PackageURL
	if s.Commit != "" {
		root.Properties = &[]cdx.Property{{Name: "trtship:commit", Value: s.Commit}}
	}
	components := modules(s.Build)
	components = append(components, pythons(s.Python)...)
	if s.Image != nil {
		debs, err := debians(s.Image)
		if err != nil {
			return nil, fmt.Errorf("list Debian packages: %w", err)
		}
		components = append(components, debs...)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	refs := make([]string, 0, len(components))
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &root}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: root.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	enc := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := enc.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("write bill of materials: %w", err)
	}
	return b.Bytes(), nil
}

func golang(module, version string) string {
	space, name := "", module
	if at := strings.LastIndexByte(module, '/'); at >= 0 {
		space, name = module[:at], module[at+1:]
	}
	return packageurl.NewPackageURL(packageurl.TypeGolang, space, name, version, nil, "").ToString()
}

// modules lists the modules that are linked in, and the standard library.
func modules(info *debug.BuildInfo) []cdx.Component {
	if info == nil {
		return nil
	}
	std := strings.TrimPrefix(info.GoVersion, "go")
	out := []cdx.Component{{
		Type: cdx.ComponentTypeLibrary, Name: "stdlib", Version: std, PackageURL: golang("stdlib", std), BOMRef: golang("stdlib", std),
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: golang(m.Path, m.Version)}
		c.BOMRef = c.PackageURL
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		out = append(out, c)
	}
	return out
}

// pythons lists each package once, with the environments that have it.
func pythons(packages []Python) []cdx.Component {
	var out []cdx.Component
	at := map[string]int{}
	for _, p := range packages {
		url := packageurl.NewPackageURL(packageurl.TypePyPi, "", strings.ToLower(p.Name), p.Version, nil, "").ToString()
		in := cdx.Property{Name: "trtship:environment", Value: p.Environment}
		if i, ok := at[url]; ok {
			*out[i].Properties = append(*out[i].Properties, in)
			continue
		}
		at[url] = len(out)
		properties := []cdx.Property{in}
		for _, h := range p.Hashes { // of the files that it may come from, not of what is installed
			properties = append(properties, cdx.Property{Name: "trtship:distribution-sha256", Value: h})
		}
		out = append(out, cdx.Component{
			Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, PackageURL: url, BOMRef: url, Properties: &properties,
		})
	}
	return out
}

// statusBytes bounds a line of dpkg's status file.
const statusBytes = 1 << 20

// debians reads dpkg's list of installed packages.
func debians(image fs.FS) ([]cdx.Component, error) {
	f, err := image.Open("var/lib/dpkg/status")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	vendor, codename := release(image)
	var out []cdx.Component
	seen := map[string]bool{}
	fields := map[string]string{}
	flush := func() {
		name, version := fields["Package"], fields["Version"]
		if name != "" && version != "" && strings.HasSuffix(fields["Status"], " installed") {
			qualifiers := packageurl.QualifiersFromMap(map[string]string{"arch": fields["Architecture"], "distro": codename})
			url := packageurl.NewPackageURL(packageurl.TypeDebian, vendor, name, version, qualifiers, "").ToString()
			if !seen[url] {
				out = append(out, cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url, BOMRef: url})
			}
			seen[url] = true
		}
		fields = map[string]string{}
	}
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, statusBytes)
	for scan.Scan() {
		line := scan.Text()
		if line == "" {
			flush()
			continue
		}
		if name, value, ok := strings.Cut(line, ": "); ok && name[0] != ' ' {
			fields[name] = value
		}
	}
	flush()
	if err := scan.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// release reads which distribution an image is.
func release(image fs.FS) (vendor, codename string) {
	vendor = "debian"
	text, err := fs.ReadFile(image, "etc/os-release")
	if err != nil {
		if text, err = fs.ReadFile(image, "usr/lib/os-release"); err != nil {
			return vendor, ""
		}
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch name {
		case "ID":
			vendor = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	return vendor, codename
}
