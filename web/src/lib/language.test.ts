import { expect, it } from "vitest";
import { chooseLanguage, chosenLanguage, preferredLanguage } from "./language";

function storage() {
  const kept = new Map<string, string>();
  return {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => void kept.set(key, value),
  };
}

it("remembers a choice, and only one that exists", () => {
  const place = storage();
  expect(chosenLanguage(place)).toBeNull();
  chooseLanguage("zh", place);
  expect(chosenLanguage(place)).toBe("zh");
  place.setItem("trainwatch-language", "tlh");
  expect(chosenLanguage(place)).toBeNull();
});

it("does without storage", () => {
  const refuse = () => {
    throw new Error("no storage here");
  };
  expect(chosenLanguage({ getItem: refuse })).toBeNull();
  chooseLanguage("zh", { setItem: refuse });
});

it("takes the browser's first language that there is", () => {
  expect(preferredLanguage(["de-DE", "zh-Hans-CN", "en"])).toBe("zh");
  expect(preferredLanguage(["en-GB", "zh"])).toBe("en");
  expect(preferredLanguage(["fr"])).toBe("en");
  expect(preferredLanguage([])).toBe("en");
});
