package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// Options are what is read besides the file.
type Options struct {
	Set []string // key=value, from --set; later ones win
	Env []string // NAME=value, as of os.Environ; names other than TRTSHIP__... are ignored
}

// Load reads the file at path, applies the overrides and checks the result. Its
// error lists every mistake and has code failure.Usage; a file that cannot be
// read has code failure.Artifact.
func Load(path string, opts Options) (*Config, error) {
	if path == "" {
		return nil, failure.New(failure.Usage, "the path of the configuration is empty").WithHint("name a file, such as trtship.yaml")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "find %s: %w", path, err)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, failure.New(failure.Usage, "no configuration at %s", path).WithHint("`trtship init` writes a starter file")
	case err != nil:
		return nil, failure.New(failure.Artifact, "read configuration: %w", err)
	case info.IsDir():
		return nil, failure.New(failure.Usage, "%s is a folder, not a configuration", path).WithHint("name the file, such as %s", filepath.Join(path, "trtship.yaml"))
	case !info.Mode().IsRegular():
		// Opening a pipe or a device could wait for ever, or never end.
		return nil, failure.New(failure.Usage, "%s is no regular file (%s)", path, info.Mode().Type()).WithHint("write the configuration to a file")
	case info.Size() > maxFileBytes:
		return nil, failure.New(failure.Usage, "%s has %d bytes; a configuration has at most %d", path, info.Size(), maxFileBytes)
	}
	data, err := regular.ReadFile(abs)
	if err != nil {
		return nil, failure.New(failure.Artifact, "read configuration: %w", err)
	}
	c, err := Parse(data, path, opts)
	if err != nil {
		return nil, err
	}
	c.Dir = filepath.Dir(abs)
	c.resolvePaths()
	if odd := c.oddPaths(); len(odd) > 0 {
		return nil, odd.failure(path)
	}
	return c, nil
}

// Parse reads a configuration from memory. name stands for the file in errors;
// input paths stay as they are written.
func Parse(data []byte, name string, opts Options) (*Config, error) {
	d := &decoder{file: name, sources: map[*yaml.Node]string{}, places: map[string]*yaml.Node{}}
	root := d.parse(data)
	if len(d.problems) > 0 {
		return nil, d.problems.failure(name)
	}
	for _, o := range d.overridesOf(opts) {
		d.apply(root, o)
	}
	c := Defaults()
	d.value(reflect.ValueOf(c).Elem(), root, "", nil)
	c.Path = name
	c.Lines, c.Overrides = map[string]int{}, map[string]string{}
	for path, n := range d.places {
		if source, other := d.sources[n]; other {
			c.Overrides[path] = source
		} else {
			c.Lines[path] = n.Line
		}
	}
	d.check(c)
	if len(d.problems) > 0 {
		return nil, d.problems.failure(name)
	}
	return c, nil
}

// parse returns the root mapping of the only document.
func (d *decoder) parse(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		d.problems = append(d.problems, Problem{Where: d.file, Text: "the file is empty"})
		return nil
	case err != nil:
		d.problems = append(d.problems, d.syntax(err))
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		d.bad(&second, "", "a second document starts here; one file is one configuration")
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.problems = append(d.problems, d.syntax(err))
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		d.bad(root, "", "want keys such as model and tensorrt, got %s", describe(root))
		return nil
	}
	return root
}

var syntaxLine = regexp.MustCompile(`line (\d+): `)

// syntax turns an error of the YAML reader into a problem with its line.
func (d *decoder) syntax(err error) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	p := Problem{Where: d.file, Text: "not YAML: " + text}
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.Column = 1
		p.Where = fmt.Sprintf("%s:%d:1", d.file, p.Line)
		p.Text = "not YAML: " + strings.Replace(text, m[0], "", 1)
	}
	return p
}

// Given reports whether the file, the environment or --set gives a key, and it
// is not a default.
func (c *Config) Given(path string) bool {
	_, set := c.Overrides[path]
	return set || c.Lines[path] > 0
}

// Where returns "file:line" of a key that the file sets, the source of one that
// is set otherwise, or that of the nearest section above it; the file alone
// where nothing of it is set.
func (c *Config) Where(path string) string {
	for p := path; p != ""; p = parent(p) {
		if source, ok := c.Overrides[p]; ok {
			return source
		}
		if line, ok := c.Lines[p]; ok {
			return fmt.Sprintf("%s:%d", c.Path, line)
		}
	}
	return c.Path
}

// String returns the size in decimal, or the symbol.
func (d Dim) String() string {
	if d.Symbol != "" {
		return d.Symbol
	}
	return strconv.FormatInt(d.Size, 10)
}

// MarshalYAML writes an integer or a symbol.
func (d Dim) MarshalYAML() (any, error) {
	if d.Symbol != "" {
		return d.Symbol, nil
	}
	return d.Size, nil
}

// Dynamic reports whether the input has a dimension without a fixed size.
func (in Input) Dynamic() bool {
	for _, d := range in.Shape {
		if d.Symbol != "" {
			return true
		}
	}
	return false
}

// MarshalYAML writes a number as it was spelled.
func (s Scalar) MarshalYAML() (any, error) {
	tag := "!!float"
	if _, err := strconv.ParseInt(string(s), 0, 64); err == nil {
		tag = "!!int"
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: string(s)}, nil
}
