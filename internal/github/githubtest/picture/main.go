// Command picture renders the comment and the page of a report in a browser and
// writes what people see as PNG files for the documents.
//
//	go run ./internal/github/githubtest/picture -report report.json -o docs/pictures
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	ghtml "github.com/yuin/goldmark/renderer/html"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/report"
)

// commentStyle looks about like a comment on GitHub.
const commentStyle = `body{font:14px/1.5 -apple-system,BlinkMacSystemFont,"Segoe UI","Noto Sans",Helvetica,Arial,sans-serif;color:#1f2328;margin:0;padding:24px}
.c{border:1px solid #d1d9e0;border-radius:6px;max-width:960px}.h{background:#f6f8fa;border-bottom:1px solid #d1d9e0;padding:8px 16px;border-radius:6px 6px 0 0;color:#59636e}
.b{padding:16px}table{border-collapse:collapse;margin:0 0 16px}th,td{border:1px solid #d1d9e0;padding:6px 13px}tr:nth-child(2n){background:#f6f8fa}
code{background:#818b981f;border-radius:6px;padding:.2em .4em;font:85% ui-monospace,SFMono-Regular,Menlo,monospace}h3{margin:0 0 12px}h4{margin:20px 0 8px}
blockquote{margin:0 0 16px;padding:0 1em;color:#59636e;border-left:.25em solid #d1d9e0}pre{background:#f6f8fa;padding:16px;border-radius:6px;overflow:auto}pre code{background:none;padding:0}`

func main() {
	path := flag.String("report", "", "report.json")
	base := flag.String("baseline", "", "report.json of the baseline")
	out := flag.String("o", "docs/pictures", "folder to write to")
	name := flag.String("name", "", "beginning of the files' names; the model's name by default")
	height := flag.Int("height", 2600, "most pixels from the top that are shown")
	browser := flag.String("browser", "chromium", "browser")
	flag.Parse()
	if err := run(*path, *base, *out, *name, *browser, *height); err != nil {
		log.Fatal(err)
	}
}

func run(path, base, out, name, browser string, height int) error {
	head, err := report.Read(path)
	if err != nil {
		return err
	}
	v := report.View{Report: head}
	o := gate.Options{}
	if base != "" {
		if v.Baseline, err = report.Read(base); err != nil {
			return err
		}
		o.Source = "merge base"
	}
	v.Gate = gate.Judge(head, v.Baseline, o)
	if name == "" {
		name = head.Model.Name
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	comment, err := commentPage(v)
	if err != nil {
		return err
	}
	for file, page := range map[string][]byte{name + "-comment.png": comment, name + "-page.png": report.HTML(v)} {
		if err := shoot(browser, page, filepath.Join(out, file), height); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// commentPage is the comment's Markdown, rendered as GitHub's dialect is.
func commentPage(v report.View) ([]byte, error) {
	var b bytes.Buffer
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(ghtml.WithUnsafe()))
	text := report.Markdown(v, report.MarkdownOptions{Marker: github.Marker(v.Report.Model.Name), Limit: 60000})
	if err := md.Convert([]byte(text), &b); err != nil {
		return nil, err
	}
	body := icons.Replace(b.String())
	return fmt.Appendf(nil, `<!DOCTYPE html><meta charset="utf-8"><style>%s</style><div class="c"><div class="h"><b>github-actions</b> bot commented</div><div class="b">%s</div></div>`, commentStyle, body), nil
}

// icons stand in for emoji, which a browser on a bare machine has no font for.
var icons = strings.NewReplacer("✅", `<b style="color:#1a7f37">✔</b>`, "❌", `<b style="color:#cf222e">✘</b>`, "💥", `<b style="color:#cf222e">✸</b>`,
	"⛔", `<b style="color:#cf222e">⊘</b>`, "⚠️", `<b style="color:#9a6700">⚠</b>`, "➖", `<b style="color:#59636e">–</b>`, "🆕", `<b style="color:#0969da">＋</b>`)

// shoot renders a page and cuts the empty rest below it.
func shoot(browser string, page []byte, dest string, height int) error {
	dir, err := os.MkdirTemp("", "picture-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	src, shot := filepath.Join(dir, "page.html"), filepath.Join(dir, "shot.png")
	if err := os.WriteFile(src, page, 0o644); err != nil {
		return err
	}
	exe, err := proc.Look(browser, os.Getenv("PATH"))
	if err != nil {
		return err
	}
	err = proc.Run(context.Background(), proc.Command{Path: exe, Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, Args: []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", fmt.Sprintf("--window-size=1120,%d", height), "--screenshot=" + shot, "file://" + src,
	}})
	if err != nil {
		return err
	}
	f, err := os.Open(shot)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	img, err := png.Decode(f)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	enc := png.Encoder{CompressionLevel: png.BestCompression}
	if err := enc.Encode(&b, paletted(trim(img))); err != nil {
		return err
	}
	return report.WriteFile(dest, b.Bytes())
}

// trim cuts rows of one colour off the end.
func trim(img image.Image) image.Image {
	r := img.Bounds()
	last := r.Max.Y - 1
	for ; last > r.Min.Y; last-- {
		first := img.At(r.Min.X, last)
		plain := true
		for x := r.Min.X; x < r.Max.X && plain; x++ {
			plain = img.At(x, last) == first
		}
		if !plain {
			break
		}
	}
	out := image.NewRGBA(image.Rect(0, 0, r.Dx(), min(r.Dy(), last-r.Min.Y+24)))
	draw.Draw(out, out.Bounds(), img, r.Min, draw.Src)
	return out
}

// paletted keeps the file small: the pictures hold few colours.
func paletted(img image.Image) image.Image {
	r := img.Bounds()
	count := map[color.RGBA]int{}
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)]++
		}
	}
	// Half of the places for the commonest colours, half for the commonest that
	// are no grey: a red mark must stay red.
	palette := most(count, nil, 128, func(color.RGBA) bool { return true })
	palette = most(count, palette, 256, func(c color.RGBA) bool { return max(c.R, c.G, c.B)-min(c.R, c.G, c.B) > 60 })
	out := image.NewPaletted(r, palette)
	draw.Draw(out, r, img, r.Min, draw.Src)
	return out
}

// most moves the commonest colours that fit into a palette.
func most(count map[color.RGBA]int, palette color.Palette, size int, fits func(color.RGBA) bool) color.Palette {
	for len(palette) < size {
		best, found := color.RGBA{}, false
		for c, n := range count {
			if fits(c) && (!found || n > count[best]) {
				best, found = c, true
			}
		}
		if !found {
			break
		}
		palette = append(palette, best)
		delete(count, best)
	}
	return palette
}
